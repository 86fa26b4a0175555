"""The tutorials' kept outputs are of their text, the gallery has all, and (slow) they run."""

import sys
from pathlib import Path

import nbformat
import pytest

import pmcl

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

run_tutorials = pytest.importorskip("run_tutorials", reason="needs what the docs are built with")

PAGES = sorted(run_tutorials.FOLDER.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_outputs_are_of_the_text(page: Path) -> None:
    text = run_tutorials.written(page)
    kept = nbformat.read(page.with_suffix(".ipynb"), as_version=4)
    assert [c.source for c in kept.cells] == [c.source for c in text.cells], (
        f"{page.stem}: its outputs are of another text; `make tutorials` makes them anew"
    )
    code = [c for c in kept.cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
    outputs = [o for c in code for o in c.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    figures = [o.data["image/svg+xml"] for o in outputs if "image/svg+xml" in o.get("data", {})]
    assert figures, "a tutorial shows a figure"
    assert page.with_suffix(".ipynb").stat().st_size < 300 * 2**10


def test_the_start_page_leads_to_every_tutorial() -> None:
    assert len(PAGES) >= 5
    start = (ROOT / "docs" / "index.md").read_text()
    for page in PAGES:
        assert f"<tutorials/{page.stem}>" in start
        assert f"\ntutorials/{page.stem}\n" in start


def test_every_published_model_has_a_thumbnail() -> None:
    pictures = {path.stem for path in (ROOT / "docs" / "_static" / "models").glob("*.svg")}
    assert pictures == set(pmcl.models.names())


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs(page: Path) -> None:
    done = run_tutorials.run(page)
    kept = nbformat.read(page.with_suffix(".ipynb"), as_version=4)
    kinds = [[o.output_type for o in c.get("outputs", [])] for c in done.cells]
    assert kinds == [[o.output_type for o in c.get("outputs", [])] for c in kept.cells]
