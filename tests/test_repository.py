"""The repository's own promises: locks without addresses, licences, the wheel's contents."""

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
    good = ["pmcl/__init__.py", "pmcl/py.typed", "pmcl-0.1.0.dist-info/licenses/LICENSE"]
    good.append("pmcl/report/templates/page.html")
    assert problems(good, ["pmcl/__init__.py"]) == []
    assert any("tests/test_data.py" in p for p in problems([*good, "tests/test_data.py"], []))
    assert any("pmcl/data.py" in p for p in problems(good, ["pmcl/data.py"]))
    assert any("py.typed" in p for p in problems([good[0], good[2]], []))
    assert any("LICENSE" in p for p in problems(good[:2], []))
    assert any("page.html" in p for p in problems(good[:3], []))
    assert any("compiled" in p for p in problems([*good, "pmcl/__pycache__/data.pyc"], []))
