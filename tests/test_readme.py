"""The README's code runs as it is printed, and the reference lists every public name."""

import re
from functools import partial, partialmethod
from pathlib import Path

import numpy as np
import pytest

import pmcl
from pmcl.amortized.fit import fit_amortized
from pmcl.models import definition

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def few_steps(monkeypatch):
    """Make defaults small, where the README leaves a number or the network to its default."""
    network = pmcl.Network(
        pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=8, head_depth=1),
        pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=8),
    )
    fit = partial(pmcl.fit_amortized, steps=20, network=network)
    monkeypatch.setattr(pmcl, "fit_amortized", fit)
    adapt = partialmethod(pmcl.AmortizedPosterior.adapt, steps=5)
    monkeypatch.setattr(pmcl.AmortizedPosterior, "adapt", adapt)
    few = partial(pmcl.sample_reference, draws=50, tune=100, chains=2)
    monkeypatch.setattr(pmcl, "sample_reference", few)


def blocks_of(path):
    """Code of a page, as it is printed."""
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S)


# a network that was trained for twenty steps has no good k-hat
@pytest.mark.filterwarnings("ignore:.*k-hat:UserWarning")
def test_the_readme_runs_as_printed(few_steps, capsys, monkeypatch, tmp_path):
    blocks = blocks_of(ROOT / "README.md")
    assert len(blocks) >= 3
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)  # noqa: S102
    posterior, idata = namespace["posterior"], namespace["idata"]
    assert [task.name for task in posterior.records] == ["wines"]
    assert len(posterior.memory) == 1
    assert idata["posterior"].sizes["dataset"] == 10
    assert (tmp_path / "posterior.zarr.zip").exists()
    said = capsys.readouterr().out
    assert "beta[4]" in said and "mmd2" in said


def test_the_readme_is_short_and_has_its_picture():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 150
    (picture,) = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert (ROOT / picture).read_text().lstrip().startswith("<?xml")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "page",
    [
        *(
            pytest.param(p, marks=pytest.mark.slow)
            for p in (
                *("panel", "racing-diffusion", "trust", "scale", "latents", "questions"),
                "multilevel",
            )
        ),
        "networks",
        "streams",
        "llms",
    ],
)
def test_a_case_study_runs_as_printed(page, few_steps, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(definition, "fit_amortized", pmcl.fit_amortized)
    if page == "multilevel":  # a summary network has no levels
        fit = partial(fit_amortized, steps=20, simulations=200)
        monkeypatch.setattr(pmcl, "fit_amortized", fit)
    namespace = {}
    for block in blocks_of(ROOT / "docs" / f"{page}.md"):
        exec(compile(block, page, "exec"), namespace)  # noqa: S102
    if page == "panel":
        assert namespace["posterior"].records
    elif page == "racing-diffusion":
        assert namespace["far"].shape == (4,)
    elif page == "networks":
        summary = namespace["own"].amortizer.summary
        found = summary(np.array([[0.0], [1.0], [2.0], [9.0]]), np.array([True, True, True, False]))
        np.testing.assert_allclose(found, [1, np.sqrt(2 / 3)], rtol=1e-6)
    elif page == "llms":
        assert namespace["later"]["y"].shape[:2] == (1, 1000)
        assert namespace["draws"]["posterior"]["beta"].sizes["predictor"] == 2
    elif page == "multilevel":
        counties = namespace["later"]["posterior"].coords["county"].values
        assert sorted(counties) == ["Dodge", "Mower", "Rice"]
        assert namespace["idata"]["posterior"].sizes["county"] == 4
    elif page == "streams":
        assert namespace["stream"].state.updates == 4
    elif page == "latents":
        khat = namespace["told"]["row_stats"]["khat"].values
        assert namespace["stream"].state.updates == 3 and (khat < 0.7).mean() > 0.5
        slopes = namespace["panel"].sample()["posterior"]["slopes"].mean(("chain", "draw")).values
        assert (slopes > 0.1).all() and (slopes < 1.2).all()
    elif page == "questions":
        assert int(namespace["flow"]["year"][int(namespace["when"]["when_value"][28 - 1])]) == 1899
        assert int(namespace["when"].argmax("when_value")) == 28 - 1
        share = namespace["compared"]["probability"].sel(model="all three", dataset="oldest")
        assert float(share) > 0.9
        assert namespace["metric"].exists()
    elif page == "scale":
        assert {p.name for p in tmp_path.iterdir()} == {
            "survey.zarr", "draws.zarr", "more.zarr", "nuts.zarr"
        }  # fmt: skip
    else:
        assert namespace["watched"]["alarm"].values[20:].any()
        assert (tmp_path / "report.html").exists()


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"(?<=[`\n])make ([a-z-]+)", (ROOT / page).read_text()))
        assert {"demo", "test"} <= named <= targets


def test_every_file_that_is_linked_exists():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / "README.md").read_text())
    assert "LICENSE" in links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_reference_lists_every_public_name_once():
    page = (ROOT / "docs" / "api.md").read_text()
    listed = re.findall(r"^   (\w+)$", page, re.M)
    assert sorted(listed) == sorted(set(pmcl.__all__) - {"__version__", "models"})
