"""Install pmcl into an empty environment, and run the README's first lines and the command there.

`python tools/check_install.py 3.12 wheel`, or 3.13 and sdist. Only what pmcl itself asks for is
installed, in the versions of the lock.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from check_wheel import ROOT, build_wheel

UV = ROOT / ".uv" / "bin" / "uv"
# what follows the README's first lines, with hardly any training
AFTER = """
y = np.random.default_rng(0).normal(size=(2, 100))
tree = posterior.sample({"X": np.zeros((2, 100, 5)), "y": y}, 100, random_seed=1)
assert tree["posterior"]["beta"].shape == (1, 100, 2, 5)
print(pmcl.__version__, pmcl.models.names()[:2])
"""


def run(*command: str | Path, **options: object) -> str:
    """Run a command; what it said is in the error where it fails."""
    done = subprocess.run(
        list(map(str, command)), check=False, text=True, capture_output=True, **options
    )  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def built(kind: str, folder: Path) -> Path:
    """Build a wheel, or a source distribution."""
    if kind == "wheel":
        return build_wheel(folder)
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, ROOT)
    (found,) = folder.glob("pmcl-*.tar.gz")
    return found


def main(version: str = "3.12", kind: str = "wheel") -> None:
    text = (ROOT / "README.md").read_text()
    lines = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)[0]
    short = lines.replace("random_seed=1)", "random_seed=1, steps=20, progressbar=False)")
    assert short != lines
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        package = built(kind, folder)
        run(UV, "venv", "--quiet", "--python", version, folder / "env")
        python = folder / "env" / "bin" / "python"
        lock = ROOT / "requirements.txt"
        run(UV, "pip", "install", "--quiet", "--python", python, "--constraints", lock, package)
        script = folder / "lines.py"
        script.write_text(short + AFTER)
        said = run(python, "-I", script, cwd=folder)
        run(folder / "env" / "bin" / "pmcl", "doctor", cwd=folder)
        print(f"{package.name} on Python {version}: {said.splitlines()[-1]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
