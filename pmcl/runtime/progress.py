"""Progress of everything long, with rich, on one line; silent when asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import rich
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from pmcl.runtime.devices import writes
from pmcl.runtime.jitting import compiling_for


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:.3g}/s")


class _Note(ProgressColumn):
    """What is said beside the bar; while something is compiled, that, with a clock that moves."""

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis", max_width=32))

    def render(self, task: Task) -> Text:
        seconds = compiling_for()
        if seconds is None:
            return Text(str(task.fields["note"]))
        return Text(f"compiling, once: {seconds:.0f} s")


class Bar:
    """One line of progress: how far, the present loss, the speed and the time left."""

    def __init__(self, progress: Progress, description: str, total: int | None):
        self._progress = progress
        self._task = progress.add_task(description, total=total, note="")

    def advance(self, n: float, note: str = "") -> None:
        """Move on by `n` and show `note` beside the bar."""
        self._progress.update(self._task, advance=n, note=note)

    def say(self, note: str) -> None:
        """Show `note` beside the bar."""
        self._progress.update(self._task, note=note)


@contextmanager
def progress_bar(
    description: str, total: int, *, enabled: bool, console: Console | None = None
) -> Iterator[Bar]:
    """Show a bar of `total` units while the block runs; of several processes, in the first."""
    columns = (
        TextColumn("{task.description}", markup=False, table_column=_narrow()),
        BarColumn(bar_width=8),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        _Note(),
        _Speed(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True),
    )
    console = console or _console()
    with Progress(*columns, console=console, disable=not (enabled and writes())) as progress:
        yield Bar(progress, description, total)


@contextmanager
def working(description: str, *, enabled: bool) -> Iterator[None]:
    """Show that something is being done, of which nobody knows how far it is; gone when it is."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=_narrow()),
        _Note(),
        TimeElapsedColumn(),
    )
    shown = enabled and writes()
    with Progress(*columns, console=_console(), transient=True, disable=not shown) as progress:
        Bar(progress, description, None)
        yield


def _console() -> Console | None:
    """Rich's own, but in a notebook without widgets, where it would warn with every bar."""
    if rich.get_console().is_jupyter and find_spec("ipywidgets") is None:
        return Console(force_jupyter=False)
    return None


def _narrow() -> Column:
    return Column(no_wrap=True, overflow="ellipsis", max_width=18)
