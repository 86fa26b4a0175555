"""The command ``pmcl``: fit, adapt, sample and compare from a shell; published models.

PyMC and JAX take seconds to import: nothing here imports them before an answer needs them.
"""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError

import pmcl
from pmcl.cli import draws, work
from pmcl.cli.common import Flag, console
from pmcl.cli.machine import doctor
from pmcl.cli.registry import models, publish
from pmcl.cli.settings import from_file
from pmcl.runtime.caching import for_the_command

# what compiles takes what an earlier command compiled
_COMPILES = ("fit", "adapt", "sample", "reference", "report", "demo", "publish", "models")

app = App(
    name="pmcl",
    version=f"pmcl {pmcl.__version__}",
    help=(pmcl.__doc__ or "").split("\n")[0],
    help_epilogue="With --no-cache no compiled functions are kept for the next command.",
    config=from_file,
)


app.command(models)
app.register_install_completion_command(help="Complete commands and options in this shell.")


for command in (
    publish,
    work.fit,
    work.adapt,
    draws.sample,
    draws.reference,
    draws.compare,
    work.report,
    doctor,
):
    app.command(command)


@app.command
def demo(
    *, out: Path = Path("demo-out"), seed: int = 1, quick: Annotated[bool, Flag] = False
) -> None:
    """Linear regressions on real data, end to end.

    Train an amortized posterior of a linear regression, draw for datasets of four real tables,
    adapt to one after another, and compare with NUTS of the same model. Needs the extra "demo".

    Parameters
    ----------
    out
        Folder for table.json, figure.png, report.html, posterior.zarr.zip and results.zarr.
    seed
        Random seed.
    quick
        Two tasks and hardly any training: shows that everything runs, and nothing else.
    """
    from pmcl.demo.run import QUICK, DemoSettings, run_demo

    run_demo(out, settings=QUICK if quick else DemoSettings(), random_seed=seed)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; those of the process by default.

    Returns
    -------
    int
        The exit status: 0 done, 1 refused or failed (said in a line), 2 not understood.
    """
    tokens = list(sys.argv[1:] if argv is None else argv)
    if not tokens:
        app.help_print([], console=console())
        return 2
    if "--no-cache" in tokens:
        tokens.remove("--no-cache")
    elif tokens[0] in _COMPILES:
        _keep_compiled()
    try:
        with _warnings_in_a_line(tokens[0]):
            status = app(
                tokens, exit_on_error=False, result_action="return_value", error_console=console()
            )
    except CycloptsError:
        return 2
    except KeyboardInterrupt:
        print("pmcl: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if not _expected(error):
            raise
        said = error.args[0] if isinstance(error, KeyError) and error.args else error
        print(f"pmcl {tokens[0]}: {' '.join(str(said).split())}", file=sys.stderr)
        return 1
    return status if isinstance(status, int) else 0


def _keep_compiled() -> None:
    """Keep compiled functions for the next command; a word where the folder is new, or no use."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        new = for_the_command()
    for each in said:
        print(f"pmcl: {each.message}", file=sys.stderr)
    if new is not None:
        print(
            f"pmcl: compiled functions are kept in {new} (1 GB at most; --no-cache: not)",
            file=sys.stderr,
        )


@contextmanager
def _warnings_in_a_line(command: str) -> Iterator[None]:
    """Say warnings as errors are said; what libraries say of code is for who writes it."""

    def say(message: Warning | str, category: type[Warning], filename: str, *about: object) -> None:
        parts = {*Path(filename).parts}
        ours = "site-packages" not in parts or parts & {"pmcl", "cyclopts"}  # that calls us
        if ours and issubclass(category, UserWarning | RuntimeWarning):
            print(f"pmcl {command}: {' '.join(str(message).split())}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = say  # type: ignore[assignment]
        yield


def _expected(error: Exception) -> bool:
    """Whether an error is about what the user gave, and says so itself."""
    if isinstance(error, OSError) or type(error).__module__.startswith("pmcl."):
        return True
    # The errors of pmcl are all of these kinds; none needs to be imported to be known.
    return isinstance(error, ValueError | ImportError | KeyError | NotImplementedError)
