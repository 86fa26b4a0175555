"""What a report of a problem needs: versions, devices, caches."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from packaging.requirements import Requirement

import pmcl
from pmcl.cli.common import Json, answer, apart
from pmcl.runtime.caching import default_folder

_VARIABLES = ("PMCL_", "JAX_", "XLA_", "PYTENSOR_")


def doctor(*, json: Json = False) -> None:
    """Say what is installed, where it runs and what is kept: paste it into a report of a problem.

    Parameters
    ----------
    json
        As JSON.
    """
    with apart():
        facts = examined()
    width = 2 + max(len(name) for part in facts.values() for name in part)
    lines = []
    for part, found in facts.items():
        lines += [part, *(f"  {name:<{width}}{value}" for name, value in found.items())]
    answer(facts, json, "\n".join(lines))


def examined() -> dict[str, dict[str, Any]]:
    """Look at this process's machine, packages, devices, environment and caches."""
    import jax

    memory = _memory()
    return {
        "system": {
            "pmcl": pmcl.__version__,
            "python": platform.python_version(),
            "executable": sys.executable,
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            **({} if memory is None else {"memory": f"{memory / 2**30:.1f} GiB"}),
        },
        "packages": _packages(),
        "devices": {f"{d.platform}:{d.id}": d.device_kind for d in jax.devices()},
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_VARIABLES)},
        "kept": _kept(),
    }


def _packages() -> dict[str, str]:
    """Versions of what pmcl needs, and of what its extras add; what does not fit is marked."""
    found: dict[str, str] = {}
    for line in requires("pmcl") or ():
        need = Requirement(line)
        extra = "" if need.marker is None else str(need.marker).split("==")[-1].strip(" \"'")
        why = f" (extra {extra!r})" if extra else ""
        try:
            there = version(need.name)
        except PackageNotFoundError:
            found.setdefault(need.name, f"not installed{why}")
            continue
        fits = need.specifier.contains(there, prereleases=True)
        found[need.name] = there if fits else f"{there}, but pmcl needs {need.specifier}{why}"
    return dict(sorted(found.items()))


def _kept() -> dict[str, str]:
    """Folders that are written on this machine, their size, and how they are emptied."""
    folder = default_folder().parent
    found = {"folder": str(folder)}
    for each in sorted(folder.iterdir()) if folder.is_dir() else ():
        size = sum(f.stat().st_size for f in each.rglob("*") if f.is_file())
        found[each.name] = f"{size / 2**20:.1f} MiB"
    found["to empty it"] = "delete the folder: it is filled again as needed"
    return found


def _memory() -> int | None:
    """Bytes of memory that the machine has, where the system says."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
