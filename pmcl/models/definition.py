"""Published model definitions: a folder each, with `model.py`, `card.md` and perhaps a state.

`model.py` is Python: reading a model runs it. pmcl reads those that it was installed with, those of
a folder that the user names, and nothing that a state or any other data file says.
"""

import hashlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pymc as pm

from pmcl.amortized.fit import fit_amortized
from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.archive.errors import StateError
from pmcl.archive.files import load as load_state
from pmcl.data.task import TaskLike

STATE = "state.zarr.zip"
CARD = "card.md"
LARGEST_STATE = 2 * 2**20  # bytes
_PACKAGE = Path(__file__).resolve().parents[1]


class ModelError(ValueError):
    """A model definition that is not there, or not as it should be; the message says what to do."""


@dataclass(frozen=True)
class ModelDefinition:
    """A model as its author wrote it down, with what `fit_amortized` needs beside it.

    Attributes
    ----------
    name : str
    path : Path
        The Python file; card and state lie beside it.
    function : callable
        Returns the `pm.Model`.
    module : module
        What the file defines.
    """

    name: str
    path: Path
    function: Callable[..., pm.Model] = field(repr=False)
    module: ModuleType = field(repr=False)

    @property
    def description(self) -> str:
        """What the model is for: the first line of the file's docstring, or of the function's."""
        for text in (self.module.__doc__, self.function.__doc__):
            if text and text.strip():
                return text.strip().splitlines()[0]
        return ""

    @property
    def exchangeable(self) -> str | None:
        """The dim along which order does not matter, where the author named it."""
        return self._name("exchangeable")

    @property
    def sequence(self) -> str | None:
        """The dim along which order matters, where the author named it."""
        return self._name("sequence")

    @property
    def lengths(self) -> tuple[int, int] | None:
        """Shortest and longest dataset to train over, where the author named them."""
        return getattr(self.module, "lengths", None)

    @property
    def missing(self) -> float:
        """Mean fraction of missing values to train over."""
        return getattr(self.module, "missing", 0.0)

    @property
    def card(self) -> Path:
        """Where the card is, once the model is published."""
        return self.path.parent / CARD

    @property
    def state(self) -> Path | None:
        """The trained state, if one is published."""
        path = self.path.parent / STATE
        return path if path.exists() else None

    def model(self, **arguments: Any) -> pm.Model:
        """Build the PyMC model.

        Raises
        ------
        ModelError
            Where the function does not return one.
        """
        built = self.function(**arguments)
        if not isinstance(built, pm.Model):
            raise ModelError(
                f"{self.path}: expected {self.function.__name__}() to return a pm.Model, got "
                f"{type(built).__name__}."
            )
        return built

    def covariates(self) -> dict[str, Any] | None:
        """Sources of simulated covariates, as `fit_amortized` takes them."""
        return self._call("covariates")

    def network(self) -> Any:
        """The network to train; None: the default one."""
        return self._call("network")

    def training(self) -> dict[str, Any]:
        """Options of `fit_amortized` besides, such as `simulations`."""
        return self._call("training") or {}

    def example(self) -> TaskLike | None:
        """Real data to compare with NUTS at."""
        return self._call("example")

    def fit(self, **options: Any) -> AmortizedPosterior | MultilevelPosterior:
        """Train an amortized posterior of the model: :func:`pmcl.fit_amortized` with its options.

        Parameters
        ----------
        **options
            Of :func:`pmcl.fit_amortized`; levels are looked for where `levels` or `groups` says so.
        """
        own = {
            "covariates": self.covariates(),
            "exchangeable": self.exchangeable,
            "sequence": self.sequence,
            "network": self.network(),
            "lengths": self.lengths,
            "missing": self.missing,
            **self.training(),
            **options,
        }
        if own.get("groups") is None:
            own.setdefault("levels", False)
        return fit_amortized(self.model(), **own)

    def load(
        self, path: str | os.PathLike | None = None
    ) -> AmortizedPosterior | MultilevelPosterior:
        """Read a trained state of the model; the published one by default.

        Raises
        ------
        ModelError
            Where none is published.
        StateError
            Where the file is not a state of this model.
        """
        path = self.state if path is None else path
        if path is None:
            raise ModelError(
                f"{self.name}: no trained state is published; train one with "
                f"pmcl.models.find({self.name!r}).fit()."
            )
        found = load_state(path, self.model(), covariates=self.covariates())
        if not isinstance(found, AmortizedPosterior | MultilevelPosterior):
            raise StateError(f"{path}: expected an amortized posterior, got an online one.")
        return found

    def sources(self) -> dict[str, str | None]:
        """SHA-256 of what a card is about: the definition, and the state where there is one."""
        state = self.state
        return {
            "model": _sum(self.path.read_text(encoding="utf-8").encode()),
            "state": None if state is None else _sum(state.read_bytes()),
        }

    def _name(self, attribute: str) -> str | None:
        value = getattr(self.module, attribute, None)
        if value is not None and not isinstance(value, str):
            raise ModelError(
                f"{self.path}: expected {attribute} to be the name of a dim, got {value!r}."
            )
        return value

    def _call(self, attribute: str) -> Any:
        given = getattr(self.module, attribute, None)
        return given() if callable(given) else given


def folders() -> list[Path]:
    """Where published models are looked for: the user's folder, then the package's.

    The user's is the one that the environment variable `PMCL_MODELS` names.
    """
    installed, checkout = _PACKAGE / "published", _PACKAGE.parent / "models"
    found = [installed if installed.is_dir() else checkout]
    if named := os.environ.get("PMCL_MODELS"):
        found.insert(0, Path(named))
    return [f for f in found if f.is_dir()]


def names(folder: str | os.PathLike | None = None) -> list[str]:
    """Names of the published models.

    Parameters
    ----------
    folder : path, optional
        A folder of models; by default the user's and the package's.
    """
    where = folders() if folder is None else [Path(folder)]
    return sorted({p.parent.name for f in where for p in f.glob("*/model.py")})


def find(name: str, folder: str | os.PathLike | None = None) -> ModelDefinition:
    """Read a published model.

    Parameters
    ----------
    name : str
        Its folder's name.
    folder : path, optional
        A folder of models; by default the user's (`PMCL_MODELS`), then the package's.

    Raises
    ------
    ModelError
        Where there is none of that name, naming those that there are.
    """
    for where in folders() if folder is None else [Path(folder)]:
        path = where / name / "model.py"
        if Path(name).name == name and path.is_file():
            return read(path)
    known = ", ".join(names(folder)) or "none"
    raise ModelError(
        f"{name}: no published model of that name; expected one of {known}, or your own as "
        "file.py:function."
    )


def read(path: str | os.PathLike, function: str = "model") -> ModelDefinition:
    """Read a model from a Python file, by running it.

    Parameters
    ----------
    path : path
    function : str
        The function that returns the `pm.Model`. Beside it the file may define `covariates`,
        `example` and `network` (functions), `exchangeable` and `sequence` (names of dims),
        `lengths` and `missing` (what to train over).

    Raises
    ------
    ModelError
        Where the file cannot be read, or has no such function.
    """
    path = Path(path).resolve()
    if not path.is_file():
        raise ModelError(f"{path}: expected a Python file, there is none.")
    name = path.parent.name if path.name == "model.py" else path.stem
    module = ModuleType(f"pmcl_model_{name}")
    module.__file__ = str(path)
    try:
        # Not imported: nothing is left in the folder, nor among the modules.
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))  # noqa: S102
    except Exception as error:  # whatever the author's code may raise
        raise ModelError(f"{path}: {type(error).__name__}: {error}") from error
    found = getattr(module, function, None)
    if not callable(found):
        defined = [k for k, v in vars(module).items() if inspect.isfunction(v)]
        raise ModelError(
            f"{path}: expected a function {function!r} that returns a pm.Model; there are "
            f"{', '.join(defined) or 'none'}."
        )
    return ModelDefinition(name, path, found, module)


def named(text: str) -> ModelDefinition:
    """Read a model by what a user calls it: a published name, or ``file.py:function``.

    Raises
    ------
    ModelError
    """
    path, colon, function = text.rpartition(":")
    if colon and path.endswith(".py"):
        return read(path, function)
    return read(text) if text.endswith(".py") else find(text)


def load(
    name: str, folder: str | os.PathLike | None = None
) -> AmortizedPosterior | MultilevelPosterior:
    """Read a published model's trained posterior.

    Parameters
    ----------
    name : str
    folder : path, optional
        As for :func:`find`.

    Raises
    ------
    ModelError
        Where there is no such model, or no state is published with it.
    """
    return find(name, folder).load()


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
