"""What the benchmark scripts share: a table on the screen and a JSON file beside it."""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent


def parser(description: str) -> argparse.ArgumentParser:
    """Arguments that every benchmark takes."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--out", type=Path, default=HERE / "results", help="folder of the JSON")
    return found


def machine() -> dict[str, object]:
    """What a reader needs to judge a figure: machine, load and versions."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        **{n: version(n) for n in ("pmcl", "jax", "pymc", "flowjax", "nutpie")},
    }


def without_folders(command: Sequence[str]) -> list[str]:
    """Words of a command, of paths the last part: that is what is the same elsewhere."""
    return [Path(word).name if "/" in word else word for word in command]


def write(name: str, out: Path, figures: Mapping[str, object]) -> None:
    """Write the figures with the machine and the command that made them."""
    out.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python", *without_folders(sys.argv)])
    path = out / f"{name}.json"
    path.write_text(
        json.dumps({"command": command, "machine": machine(), **figures}, indent=1) + "\n"
    )
    print(f"written to {path}")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table

    found = Table(*columns, title=title)
    for row in rows:
        found.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row))
    Console().print(found)


def run_json(command: Sequence[str], **environment: str) -> dict:
    """Run a command in a process of its own and read the JSON object it prints last."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    text = done.stdout
    return json.loads(text[text.rindex("\n{") + 1 if "\n{" in text else text.index("{") :])
