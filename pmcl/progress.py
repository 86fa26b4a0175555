"""Progress of everything long, with rich; silent when asked."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from pmcl.devices import writes


class _Speed(ProgressColumn):
    def __init__(self, unit: str):
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:.3g} {self.unit}/s")


class Bar:
    """One line of progress: how far, the present loss, the speed and the time left."""

    def __init__(self, progress: Progress, description: str, total: int):
        self._progress = progress
        self._task = progress.add_task(description, total=total, note="")

    def advance(self, n: int, note: str = "") -> None:
        """Move on by `n` and show `note` beside the bar."""
        self._progress.update(self._task, advance=n, note=note)


@contextmanager
def progress_bar(description: str, total: int, *, unit: str, enabled: bool) -> Iterator[Bar]:
    """Show a bar of `total` units while the block runs; of several processes, in the first."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        _Speed(unit),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not (enabled and writes())) as progress:
        yield Bar(progress, description, total)
