"""Build the wheel in a temporary folder and fail unless it holds the package and nothing else."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = (
    "pmcl/__init__.py",
    "pmcl/__init__.pyi",
    "pmcl/py.typed",
    "pmcl/llms.md",
    "pmcl/diagnostics/templates/page.html",
)
PUBLISHED = ("model.py", "card.md", "state.zarr.zip", "README.md")


def build_wheel(folder: Path) -> Path:
    """Build pmcl's wheel into `folder`, with the build backend that is installed.

    Raises
    ------
    subprocess.CalledProcessError
        If the build fails; what it printed is in the exception's `output`.
    """
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    subprocess.run(
        [*command, "--outdir", str(folder), str(ROOT)],
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    (wheel,) = folder.glob("pmcl-*.whl")
    return wheel


def problems(names: list[str], modules: list[str]) -> list[str]:
    """Say what is wrong with a wheel.

    Parameters
    ----------
    names : list of str
        The files in the wheel.
    modules : list of str
        What must be there: the package's modules, and the published models.
    """
    found = []
    for name in names:
        top = name.split("/")[0]
        if top != "pmcl" and not (top.startswith("pmcl-") and top.endswith(".dist-info")):
            found.append(f"{name}: expected files under pmcl/ and pmcl-*.dist-info/ only")
        elif "__pycache__" in name or name.endswith(".pyc"):
            found.append(f"{name}: expected no compiled files")
        elif "/published/" in name and name.split("/")[-1] not in PUBLISHED:
            found.append(f"{name}: expected only {', '.join(PUBLISHED)} of a published model")
    present = set(names)
    found += [
        f"{name}: expected in the wheel, is not there"
        for name in sorted({*NEEDED, *modules} - present)
    ]
    if not any(name.endswith("/LICENSE") for name in names):
        found.append("LICENSE: expected in the wheel's dist-info, is not there")
    return found


def main() -> int:
    """Build, look, report; give the process's exit status."""
    modules = [path.relative_to(ROOT).as_posix() for path in (ROOT / "pmcl").rglob("*.py")]
    for path in (ROOT / "models").glob("*/*"):
        modules.append(f"pmcl/published/{path.relative_to(ROOT / 'models').as_posix()}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            wheel = build_wheel(Path(folder))
        except subprocess.CalledProcessError as error:
            print(error.output)
            print("the wheel does not build")
            return 1
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
        found = problems(names, modules)
        print(*found, sep="\n", end="\n" if found else "")
        print(f"{wheel.name}: {len(names)} files, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
