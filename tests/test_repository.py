"""The repository's own promises: where files go, locks, licences, the wheel's contents."""

import ast
import graphlib
import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCKS = tuple(sorted(p.name for p in ROOT.glob("requirements*.txt")))


# each imports only those that stand after it, and none but the command the names of `pmcl` itself
ROOMS = (
    *("cli", "demo", "models", "archive", "diagnostics", "amortized", "online", "continual"),
    *("refinement", "reference", "parts", "draws", "training", "networks", "levels"),
    *("search", "data", "compile", "metrics", "runtime"),
)


def modules() -> dict[str, Path]:
    """Files of the package by the names that they are imported by."""
    found = {}
    for path in sorted((ROOT / "pmcl").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(text: str, known: set[str]) -> set[str]:
    """Modules of the package that a file imports, for its types and inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "expected imports to name the package"
            names = (f"{node.module}.{name.name}" for name in node.names)
            found |= {name if name in known else str(node.module) for name in names}
    return {name for name in found if name.split(".")[0] == "pmcl"}


def upward(imported: dict[str, set[str]]) -> list[str]:
    """Imports of a room that does not stand below, or of the roof."""
    place = {room: i for i, room in enumerate(ROOMS)}
    found = []
    for module, names in imported.items():
        room = module.split(".")[1]
        for name in sorted(names):
            if name == "pmcl":
                found += [f"{module} -> {name}"] if room != "cli" else []
            elif place[name.split(".")[1]] < place[room]:
                found.append(f"{module} -> {name}")
    return found


def test_imports_run_one_way():
    paths = modules()
    assert {p.name for p in (ROOT / "pmcl").iterdir() if p.name != "__pycache__"} == {
        *ROOMS, "__init__.py", "__init__.pyi", "py.typed",
    }  # fmt: skip
    del paths["pmcl"]  # the roof: it has the names of all rooms
    imported = {name: imports(path.read_text("utf-8"), {*paths}) for name, path in paths.items()}
    assert upward(imported) == []
    # no module bears the name of what its package exports: the one would hide the other
    for name, path in paths.items():
        if path.name == "__init__.py" and name != "pmcl.cli":
            exported = ast.parse(path.read_text("utf-8")).body
            names = {
                a.name for node in exported if isinstance(node, ast.ImportFrom) for a in node.names
            }
            assert not {f"{name}.{n}" for n in names} & {*paths}, name
    # and no circle within a room
    order = graphlib.TopologicalSorter({k: v - {k, "pmcl"} for k, v in imported.items()})
    order.prepare()


def test_what_runs_the_other_way_is_seen():
    known = {"pmcl.data.task", "pmcl.amortized.fit", "pmcl.metrics"}
    hidden = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from pmcl.amortized.fit import fit_amortized
def f():
    import pmcl
    from pmcl.data import task
"""
    found = imports(hidden, known)
    assert found == {"pmcl.amortized.fit", "pmcl", "pmcl.data.task"}
    assert upward({"pmcl.data.reading": found}) == [
        "pmcl.data.reading -> pmcl",
        "pmcl.data.reading -> pmcl.amortized.fit",
    ]


def load_tool(name: str) -> ModuleType:
    """Import a script of tools/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up while it is being imported
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def locked(lock: str) -> list[Requirement]:
    text = (ROOT / lock).read_text(encoding="utf-8")
    lines = re.findall(r"^([A-Za-z0-9].*?)\s*\\?$", text, flags=re.MULTILINE)
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_holds_no_address(lock):
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert "http" not in text
    assert "://" not in text
    # no option but the hashes: an option is how an index gets into a requirements file
    assert set(re.findall(r"^\s*(-[\w-]+)", text, flags=re.MULTILINE)) == {"--hash"}


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_pins_and_hashes_everything(lock):
    text = (ROOT / lock).read_text(encoding="utf-8")
    packages = locked(lock)
    assert len(packages) > 30
    for package in packages:
        assert [s.operator for s in package.specifier] == ["=="], str(package)
    entries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(entries) == len(packages)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry) for entry in entries)


@pytest.mark.parametrize(
    ("lock", "extras", "groups"),
    [
        ("requirements.txt", ("demo", "report", "cluster"), ("test", "docs")),
        ("requirements-benchmarks.txt", ("demo",), ("benchmarks",)),
        ("requirements-marginal.txt", ("demo", "marginal"), ("test",)),
    ],
)
def test_lock_is_in_step_with_pyproject(lock, extras, groups, pyproject):
    wanted = list(pyproject["project"]["dependencies"])
    for extra in extras:
        wanted += pyproject["project"]["optional-dependencies"][extra]
    for group in groups:
        wanted += pyproject["dependency-groups"][group]

    # a universal lock forks a package by marker: judge the fork that this interpreter takes
    environment = {name: str(value) for name, value in default_environment().items()}
    versions = {
        canonicalize_name(package.name): next(iter(package.specifier)).version
        for package in locked(lock)
        if package.marker is None or package.marker.evaluate(environment)
    }
    for requirement in map(Requirement, wanted):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name}: not in {lock}; run `make lock`"
        assert requirement.specifier.contains(version, prereleases=True), (
            f"{requirement}: {lock} has {version}; run `make lock`"
        )


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", True),
        ("MIT AND BSD-3-Clause", True),
        ("MPL-2.0 AND MIT", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-or-later WITH GCC-exception-3.1", True),
        ("GPL-3.0-or-later OR MIT", True),
        ("(GPL-2.0-only OR MIT) AND BSD-3-Clause", True),
        ("GPL-3.0-or-later", False),
        ("AGPL-3.0-only", False),
        ("LGPL-2.1-or-later", False),
        ("MIT AND GPL-3.0-only", False),
        ("MIT AND (LGPL-3.0-only OR GPL-3.0-only)", False),
        # AND binds before OR
        ("GPL-3.0-only AND MIT OR GPL-2.0-only", False),
        ("MIT OR GPL-2.0-only AND GPL-3.0-only", True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("Proprietary", False),
    ],
)
def test_licence_expressions(expression, expected):
    assert load_tool("check_licences").is_permissive(expression) is expected


@pytest.mark.parametrize("expression", ["", "MIT AND", "(MIT", "MIT BSD-3-Clause"])
def test_licence_expression_that_is_none(expression):
    with pytest.raises(ValueError, match="licence expression"):
        load_tool("check_licences").is_permissive(expression)


def test_runtime_dependencies_are_walked_to_the_end():
    packages = {p.name: p for p in load_tool("check_licences").runtime_packages()}
    # direct, through an extra, and two steps away
    assert {"pymc", "statsmodels", "matplotlib", "jaxlib", "llvmlite"} <= set(packages)
    # of the tests and docs only
    assert not {"pytest", "sphinx", "mypy"} & set(packages)


def test_wheel_contents_are_judged():
    problems = load_tool("check_wheel").problems
    good = ["pmcl/__init__.py", "pmcl/py.typed", "pmcl/llms.md"]
    good += ["pmcl-0.2.0.dist-info/licenses/LICENSE"]
    good += ["pmcl/__init__.pyi", "pmcl/diagnostics/templates/page.html"]
    assert problems(good, ["pmcl/__init__.py"]) == []
    assert any("tests/test_data.py" in p for p in problems([*good, "tests/test_data.py"], []))
    assert any("pmcl/data.py" in p for p in problems(good, ["pmcl/data.py"]))
    assert any("py.typed" in p for p in problems([*good[:1], *good[2:4]], []))
    assert any("LICENSE" in p for p in problems(good[:3], []))
    assert any("page.html" in p for p in problems(good[:4], []))
    assert any("compiled" in p for p in problems([*good, "pmcl/__pycache__/data.pyc"], []))
