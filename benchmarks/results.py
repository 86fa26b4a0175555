"""What the benchmark scripts share: tables on the screen and in Markdown, figures in JSON."""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


def parser(description: str) -> argparse.ArgumentParser:
    """Arguments that every benchmark takes."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument(
        "--out", type=Path, default=HERE / "results", help="folder of the JSON and the tables"
    )
    return found


def machine() -> dict[str, object]:
    """What a reader needs to judge a figure: the cores of this process, load and versions."""
    pinned = hasattr(os, "sched_getaffinity")  # not on macOS
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)) if pinned else os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        **{n: version(n) for n in ("pmcl", "jax", "pymc", "flowjax", "nutpie")},
    }


def without_folders(command: Sequence[str]) -> list[str]:
    """Words of a command, of paths the last part: that is what is the same elsewhere."""
    return [Path(word).name if "/" in word else word for word in command]


class Table(NamedTuple):
    """A table; floats in it are rounded where it is shown."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def cells(self) -> list[list[str]]:
        """Text of every cell."""
        return [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in r] for r in self.rows]

    def markdown(self) -> list[str]:
        """Lines of the table."""
        lines = [f"| {' | '.join(self.columns)} |", "|---" * len(self.columns) + "|"]
        return lines + [f"| {' | '.join(row)} |" for row in self.cells()]

    def show(self) -> None:
        """Print it."""
        import rich.table
        from rich.console import Console

        found = rich.table.Table(*self.columns, title=self.title)
        for row in self.cells():
            found.add_row(*row)
        Console().print(found)


def write(
    name: str,
    out: Path,
    figures: Mapping[str, object],
    *tables: Table,
    remarks: Sequence[str] = (),
) -> None:
    """Write the figures with the machine and the command that made them, and show the tables.

    The tables, and the lines after them, are written for the documentation, too.
    """
    out.mkdir(parents=True, exist_ok=True)
    command, where = " ".join(["python", *without_folders(sys.argv)]), machine()
    path = out / f"{name}.json"
    path.write_text(json.dumps({"command": command, "machine": where, **figures}, indent=1) + "\n")
    print(f"written to {path}")
    if not tables:
        return
    cores = "one core" if where["cores"] == 1 else f"{where['cores']} cores"
    made = (
        f"`{command.replace('python ', 'python benchmarks/', 1)}`, {cores}, pmcl "
        f"{where['pmcl']}, JAX {where['jax']}, {str(where['date'])[:10]}."
    )
    lines = [made]
    for each in tables:
        each.show()
        lines += ["", f"{each.title}:", "", *each.markdown()]
    if remarks:
        lines += ["", *remarks]
        print(*remarks, sep="\n")
    (out / f"{name}.md").write_text("\n".join(lines) + "\n")


def run_json(command: Sequence[str], *, seconds: float | None = None, **environment: str) -> dict:
    """Run a command in a process of its own and read the JSON object it prints last.

    `subprocess.TimeoutExpired` where it takes more than so many seconds: it is ended, with all that
    it started.
    """
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    ) as process:
        try:
            text, said = process.communicate(timeout=seconds)
        except BaseException:  # a key that was pressed, too, which no longer reaches it
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{said[-3000:]}")
    return json.loads(text[text.rindex("\n{") + 1 if "\n{" in text else text.index("{") :])
