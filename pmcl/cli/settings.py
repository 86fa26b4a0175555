"""Options of a command from a file: YAML, JSON or TOML, each option under its own name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, ArgumentCollection, Parameter
from cyclopts.config import ConfigFromFile, Json, Toml, Yaml

_KINDS: dict[str, type[ConfigFromFile]] = {
    ".json": Json, ".toml": Toml, ".yaml": Yaml, ".yml": Yaml,
}  # fmt: skip

SettingsFile = Annotated[Path | None, Parameter(name="--settings")]


def from_file(app: App, commands: Sequence[str], arguments: ArgumentCollection) -> None:
    """Take the options that were not given from the file that `--settings` names.

    Raises
    ------
    DataError
        Where the file is of another kind, or holds no options by name.
    FileNotFoundError
    CycloptsError
        Naming an option that the command does not have.
    """
    named = [a for a in arguments if a.name == "--settings" and a.tokens]
    if not named:
        return
    from pmcl.data.task import DataError

    path = Path(named[0].tokens[-1].value)
    kind = _KINDS.get(path.suffix)
    if kind is None:
        raise DataError(f"--settings: expected a file that ends in {', '.join(_KINDS)}, got {path}")
    read = kind(path, must_exist=True, use_commands_as_keys=False)
    if not isinstance(read.config, dict):
        raise DataError(f"--settings: {path}: expected options by name.")
    read(app, tuple(commands), arguments)
