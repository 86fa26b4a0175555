"""Published models: found, checked, trained, described; and those that are in the repository."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tiny_model import TINY

import pmcl
from pmcl import models
from pmcl.archive import StateError, read_archive
from pmcl.data.task import Layout
from pmcl.models import publishing
from pmcl.models.definition import CARD, LARGEST_STATE, STATE, ModelError
from pmcl.models.publishing import Published, publish

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = {
    "linear_regression",
    "logistic_regression",
    "poisson_regression",
    "hierarchical_normal",
    "robust_regression",
    "normal_mixture",
    "ar2",
    "autoregressive_panel",
    "racing_diffusion",
    "racing_diffusion_conditions",
}
MULTILEVEL = {"varying_slopes", "counts_by_site", "item_response"}


def folder_with(path: Path, source: str = TINY, name: str = "tiny") -> Path:
    (path / name).mkdir(parents=True)
    (path / name / "model.py").write_text(source)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return folder_with(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def published(folder) -> Published:
    return publish(
        models.find("tiny", folder),
        adapt=True,
        state=True,
        simulations=100,
        random_seed=0,
        progressbar=False,
        steps=600,
        learning_rate=3e-3,
        warmup=50,
    )


def test_the_repository_publishes_what_it_says():
    assert PUBLISHED | MULTILEVEL <= set(models.names())
    for name in models.names():
        found = models.find(name)
        assert found.path.parent.parent == ROOT / "models"
        assert len(found.description) > 10
        assert found.description.endswith(".")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MULTILEVEL))
def test_published_multilevel_models_take_their_examples(name):
    found = models.find(name)
    posterior, example = found.load(), found.example()
    assert isinstance(posterior, pmcl.MultilevelPosterior)
    assert len(posterior.sampler.checked(example).task) == 1


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_models_have_examples_that_fit_them(name):
    found = models.find(name)
    layout = Layout.of(
        pmcl.compile_model(found.model(), covariates=tuple(found.covariates() or ())),
        found.exchangeable or found.sequence,
    )
    task = pmcl.as_task(found.example(), layout)
    assert len(task) >= 1
    # standardised columns, as the priors expect; counts, effects, growth and times are not
    as_they_are = {"poisson_regression", "hierarchical_normal", "logistic_regression"}
    as_they_are |= {"autoregressive_panel", "racing_diffusion", "racing_diffusion_conditions"}
    if name not in as_they_are:
        assert np.abs(task.values["y"].mean()) < 0.5 and 0.5 < task.values["y"].std() < 1.5


@pytest.mark.parametrize("name", sorted(PUBLISHED | MULTILEVEL))
def test_cards_are_of_the_present_models(name):
    """`make models` compiles each one besides."""
    found = models.find(name)
    card = models.card_of(found)
    assert card is not None
    assert {k: card[k] for k in ("model", "state")} == found.sources()


def test_published_states_carry_no_memory():
    for name in models.names():
        state = models.find(name).state
        if state is not None:
            assert "memory" not in read_archive(state).children
            assert state.stat().st_size <= LARGEST_STATE


def test_models_are_found_by_name_and_by_file(folder, monkeypatch):
    assert models.names(folder) == ["tiny"]
    monkeypatch.setenv("PMCL_MODELS", str(folder))
    assert set(models.names()) == PUBLISHED | MULTILEVEL | {"tiny"}
    found = models.named("tiny")
    assert found.description == "A normal mean: what ten numbers have in common."
    assert found.exchangeable == "obs" and found.sequence is None and found.covariates() is None
    assert models.named(f"{found.path}:model").model(rows=3).named_vars["y"].eval().shape == (3,)
    assert not list(folder.rglob("__pycache__"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such", "no published model of that name; expected one of ar2"),
        ("../models/ar2", "no published model"),
        ("nowhere.py:model", "there is none"),
    ],
)
def test_models_that_are_not_there(name, message):
    with pytest.raises(ModelError, match=message):
        models.named(name)


def test_definitions_that_are_no_models(folder, tmp_path):
    path = folder / "tiny" / "model.py"
    with pytest.raises(ModelError, match="a function 'build'.*there are model, network, example"):
        models.read(path, "build")
    with pytest.raises(ModelError, match=r"nothing\(\) to return a pm.Model, got int"):
        models.read(path, "nothing").model()
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    with pytest.raises(ModelError, match="broken.py: ZeroDivisionError"):
        models.read(broken)
    broken.write_text("exchangeable = 3\ndef model(): ...")
    with pytest.raises(ModelError, match="exchangeable to be the name of a dim, got 3"):
        models.read(broken).exchangeable  # noqa: B018


def test_what_publishing_finds_is_on_the_card(published, folder):
    assert published.problems == []
    definition = published.definition
    text = definition.card.read_text()
    figures = published.figures
    assert "calibrated, and in agreement with NUTS" in text
    assert "mu ~ Normal(1, 2)" in text and "Adapted to: example" in text
    p = min(figures["calibration"]["network"]["p"]["mu"])
    assert f"| `mu` | {p:.3f} |" in text
    for i, name in enumerate(("a", "b")):
        row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        assert f"{figures['example']['network']['mmd2'][i]:.4f}" in row
        # the posterior is known: the network cannot be far from it
        assert figures["example"]["refined"]["mmd2"][i] < 0.02
    alone = figures["simulated"]["network"]
    assert len(alone["mmd2"]) == 10 and max(figures["simulated"]["refined"]["mmd2"]) < 0.02
    facts = models.card_of(definition)
    assert facts is not None
    assert facts["network"]["simulated"]["mmd2"] == pytest.approx(np.mean(alone["mmd2"]), abs=1e-4)
    assert facts["network"]["example"]["efficiency"] > 0.9
    assert facts["random_seed"] == 0 and facts["pmcl"] == pmcl.__version__
    assert models.check(definition) == []


def test_a_published_state_is_the_posterior_without_its_data(published, folder):
    found = models.load("tiny", folder)
    assert len(published.posterior.memory) == 1 and len(found.memory) == 0
    data = models.find("tiny", folder).example()
    ours, theirs = (
        p.sample(data, 20, refine=False, random_seed=3)["posterior"]["mu"]
        for p in (published.posterior, found)
    )
    np.testing.assert_array_equal(ours, theirs)


def copied(published: Published, path: Path, change: dict[str, str] | None = None) -> Path:
    """Copy the published model, its definition changed."""
    (path / "tiny").mkdir()
    for file in published.definition.path.parent.iterdir():
        (path / "tiny" / file.name).write_bytes(file.read_bytes())
    source = TINY
    for old, new in (change or {}).items():
        assert old in source
        source = source.replace(old, new)
    (path / "tiny" / "model.py").write_text(source)
    return path


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"Normal(\"mu\", 1, 2)": "Normal(\"mu\", 1, 3)"}, "the model has changed since its card"),
        ({'exchangeable = "obs"': 'exchangeable = "row"'}, "'row' is no dim of what is observed"),
        ({"pm.Normal(\"y\", mu, 1, ": "pm.Potential(\"y\", mu); dict("}, "does not compile"),
        ({'"""A normal mean: what ten numbers have in common."""': "", '"""Build it."""': ""},
         "no docstring"),
    ],
)  # fmt: skip
def test_a_model_that_changed_is_reported(published, tmp_path, change, expected):
    problems = models.check(models.find("tiny", copied(published, tmp_path, change)))
    assert any(expected in p for p in problems), problems


def test_cards_and_states_that_are_not_as_they_should_be(published, tmp_path):
    folder = copied(published, tmp_path)
    tiny, found = folder / "tiny", models.find("tiny", folder)
    assert models.check(found) == []
    # with data in it
    posterior = published.posterior
    pmcl.save(posterior, tiny / STATE)
    problems = models.check(found)
    assert any("holds 1 datasets" in p for p in problems) and any("stale" in p for p in problems)
    (tiny / STATE).write_bytes(b"0" * (LARGEST_STATE + 1))
    assert any("expected at most" in p for p in models.check(found))
    (tiny / STATE).write_bytes(b"nonsense")
    assert any("not a pmcl state" in p for p in models.check(found))
    with pytest.raises(StateError):
        models.load("tiny", folder)
    (tiny / STATE).unlink()
    assert any("the state is not the card's" in p for p in models.check(found))
    with pytest.raises(ModelError, match="no trained state is published"):
        models.load("tiny", folder)
    (tiny / CARD).write_text("# by hand")
    assert any("not a card of pmcl's" in p for p in models.check(found))
    (tiny / CARD).unlink()
    assert models.check(found) == ["no card; write it with `pmcl publish tiny`"]


@pytest.mark.slow
def test_a_card_says_what_failed(published, monkeypatch, tmp_path):
    """A network that does not know where posteriors are, hardly trained and taken as it is."""
    path = copied(published, tmp_path, {"affine_width=16),": "affine_width=16), whiten=False,"})

    def unrefined(*args, refine=False, **options):
        return pmcl.calibrate(*args, refine=False, **options)

    monkeypatch.setattr(publishing, "calibrate", unrefined)
    found = publish(
        models.find("tiny", path), simulations=100, random_seed=0, progressbar=False, steps=1
    )
    assert found.problems == ["not calibrated on simulations: mu"]
    text = found.definition.card.read_text()
    assert "**Checks: not calibrated on simulations: mu.**" in text
    assert found.definition.state is None  # the old one went with the old card
    facts = json.loads(re.match(r"<!-- pmcl (.*) -->", text).group(1))
    assert facts["state"] is None


GROUPED = '''"""Rows of groups, of known noise."""

import numpy as np
import pymc as pm


def model(groups=6, rows=18):
    """Build it."""
    with pm.Model(coords={"group": range(groups), "row": range(rows)}) as built:
        which = pm.Data("which", np.arange(rows) % groups, dims="row")
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
        a = pm.Normal("a", mu, tau, dims="group")
        pm.Normal("y", a[which], 1, observed=np.zeros(rows), dims="row")
    return built


def training():
    """Any number of groups."""
    return {"groups": (3, 12), "lengths": (9, 48), "simulations": 600}


def example():
    """Six groups."""
    rng = np.random.default_rng(0)
    which = np.arange(18) % 6
    return {"which": which, "y": rng.normal(rng.normal(size=6)[which])}
'''


@pytest.mark.slow
def test_a_model_of_any_number_of_groups_is_published(tmp_path):
    folder = folder_with(tmp_path, GROUPED, "grouped")
    definition = models.find("grouped", folder)
    given = {"state": True, "simulations": 60, "draws": 2000, "random_seed": 0, "steps": 300}
    found = publish(definition, progressbar=False, **given)
    assert found.problems == []
    text = definition.card.read_text()
    assert "trained over 3 to 12 groups along 'group', by 'which'" in text
    assert "Levels: 12 groups" in text and "Adapted to: no data" in text
    assert max(found.figures["simulated"]["refined"]["mmd2"]) < 0.02
    again = models.load("grouped", folder)
    assert isinstance(again, pmcl.MultilevelPosterior)
    assert models.check(definition) == []
    later = again.adapt(definition.example(), name="a", progressbar=False)
    assert [r.name for r in later.records] == ["a"]


def test_the_page_has_the_figures_of_the_cards():
    root = Path(__file__).parent.parent
    rows = re.findall(r"^\| .* \| (\S+) / (\S+) \| (\S+) / (\S+) \|$",
                      (root / "docs" / "models.md").read_text(), re.MULTILINE)  # fmt: skip
    cards = []
    for card in (root / "models").glob("*/card.md"):
        about = json.loads(re.search(r"<!-- pmcl (.*) -->", card.read_text()).group(1))["network"]
        cards.append(tuple(about[k][m] for k in ("simulated", "example") for m in about[k]))
    assert len(rows) == len(cards)
    half = np.array([0.0051, 0.000051] * 2)
    for row in np.array(rows, float):
        assert any(np.all(np.abs(row - card) < half) for card in cards), row
