"""Fail if a runtime dependency of pmcl, direct or not, is not permissively licensed.

pmcl is Apache-2.0 and its users ship it; a dependency must not put conditions on their own code.
Reads what is installed: run it in the environment made from requirements.txt, or, with the names of
extras, in one that has them.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("demo", "report", "cluster")

# by file (MPL-2.0) is the strongest condition taken; anything not listed fails until someone looks
PERMISSIVE = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "CC0-1.0",
        "HPND",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
        "Python-2.0",
        "Unlicense",
        "Zlib",
        # the exception lets compiled code carry the compiler's run-time library freely
        "GPL-3.0-or-later WITH GCC-exception-3.1",
    }
)

# what packages wrote before SPDX expressions: classifiers, and free text in the License field
NAMES = {
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "2-clause BSD": "BSD-2-Clause",
    "3-Clause BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "Boost Software License 1.0 (BSL-1.0)": "BSL-1.0",
    "Historical Permission Notice and Disclaimer (HPND)": "HPND",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "PSF": "PSF-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "zlib/libpng License": "Zlib",
}


@dataclass(frozen=True)
class Package:
    """One installed distribution, and the licence it declares as an SPDX expression."""

    name: str
    version: str
    licence: str
    permissive: bool


def is_permissive(expression: str) -> bool:
    """Say whether a person may take the work under permissive terms alone.

    Parameters
    ----------
    expression : str
        An SPDX licence expression: names joined by ``AND``, ``OR``, ``WITH`` and parentheses.

    Raises
    ------
    ValueError
        If the expression is not well formed.
    """
    tokens = re.findall(r"[()]|[^\s()]+", expression)
    position = 0

    def peek() -> str:
        return tokens[position].upper() if position < len(tokens) else ""

    def take() -> str:
        nonlocal position
        if position >= len(tokens):
            raise ValueError(f"licence expression {expression!r} ends too early")
        position += 1
        return tokens[position - 1]

    def any_of() -> bool:
        value = all_of()
        while peek() == "OR":
            take()
            value = all_of() or value
        return value

    def all_of() -> bool:
        value = one()
        while peek() == "AND":
            take()
            value = one() and value
        return value

    def one() -> bool:
        name = take()
        if name == "(":
            value = any_of()
            if take() != ")":
                raise ValueError(f"licence expression {expression!r} lacks a closing parenthesis")
            return value
        if peek() == "WITH":
            take()
            name = f"{name} WITH {take()}"
        return name in PERMISSIVE

    value = any_of()
    if position != len(tokens):
        raise ValueError(f"licence expression {expression!r} has {tokens[position]!r} left over")
    return value


def declared_licence(package: metadata.PackageMetadata) -> str:
    """Give the SPDX expression of a package's metadata; its own words where it has none."""
    expression = package.get("License-Expression")
    if expression:
        return expression
    classifiers = [
        words[-1]
        for words in (c.split(" :: ") for c in package.get_all("Classifier") or [])
        if words[0] == "License" and len(words) > 2
    ]
    if classifiers:
        return " AND ".join(NAMES.get(name, f"({name})") for name in sorted(classifiers))
    # some put the whole text there: its first line names it
    text = (package.get("License") or "").strip().split("\n")[0].strip()
    return NAMES.get(text, text) or "none declared"


def requirements(lines: Iterable[str], extras: Iterable[str] = ()) -> Iterator[Requirement]:
    """Yield the requirements that apply on this machine with the given extras."""
    for line in lines:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": e}) for e in ("", *extras)):
            yield requirement


def runtime_packages(root: Path = ROOT, extras: Iterable[str] = EXTRAS) -> list[Package]:
    """List everything that pmcl and its extras bring with them, by name.

    Raises
    ------
    importlib.metadata.PackageNotFoundError
        If a dependency is not installed.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]

    found: dict[str, Package] = {}
    visited: set[tuple[str, frozenset[str]]] = set()
    waiting = list(requirements(lines))
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        # a package met again with other extras can bring more
        key = (name, frozenset(requirement.extras))
        if key in visited:
            continue
        visited.add(key)
        distribution = metadata.distribution(name)
        waiting += requirements(distribution.requires or [], requirement.extras)
        licence = declared_licence(distribution.metadata)
        try:
            permissive = is_permissive(licence)
        except ValueError:
            permissive = False  # free text that is no expression: someone must look
        found[name] = Package(name, distribution.version, licence, permissive)
    return sorted(found.values(), key=lambda package: package.name)


def main(extras: Iterable[str] = EXTRAS) -> int:
    """Print the table; give the process's exit status."""
    packages = runtime_packages(extras=extras)
    width = max(len(package.name) for package in packages)
    for package in packages:
        mark = "  " if package.permissive else "! "
        print(f"{mark}{package.name:<{width}}  {package.version:<14}  {package.licence}")
    refused = [package for package in packages if not package.permissive]
    if refused:
        print(f"\n{len(refused)} of {len(packages)} runtime dependencies, marked !, are not known")
        print("to be permissive. Do without them, or, where a person has read the licence and it")
        print("is permissive, name it in tools/check_licences.py.")
        return 1
    print(f"\nall {len(packages)} runtime dependencies are permissively licensed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or EXTRAS))
