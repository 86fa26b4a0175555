"""One of each from outside the package: network, objective, strategy, memory, diagnostic."""

from html.parser import HTMLParser
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pmcl
from pmcl.archive.configuration import KNOWN
from pmcl.diagnostics.page import writing
from pmcl.diagnostics.page.elements import Section, Verdict

DRAWS = 20


class Sums(pmcl.AbstractSummary):
    """Rows are summed up, and counted."""

    scale: float = 1.0

    def build(self, features: int, *, key: jax.Array) -> pmcl.AbstractSummaryNetwork:
        return SumsNetwork(jnp.full(features, self.scale, jnp.float32))


class SumsNetwork(pmcl.AbstractSummaryNetwork):
    weights: jax.Array

    def __call__(self, rows: jax.Array, mask: jax.Array | None) -> jax.Array:
        there = jnp.ones(len(rows), rows.dtype) if mask is None else mask.astype(rows.dtype)
        total = jnp.sum(rows * there[:, None], axis=0) * self.weights
        return jnp.concatenate([total / 10, jnp.log1p(jnp.sum(there))[None]])


class ReverseDivergence(pmcl.AbstractObjective):
    """KL(q || p) up to log p(x), of reparametrised draws."""

    draws: int = 8

    def __call__(self, amortizer, density, example, key) -> pmcl.ObjectiveValue:
        context = amortizer.context(example.data, example.mask)
        z, log_q = amortizer.draw(key, self.draws, context)
        log_p = jax.vmap(lambda v: density(v, example.data, example.mask))(z.astype(float))
        ratio = log_q - log_p
        finite = jnp.isfinite(ratio)
        loss = jnp.sum(jnp.where(finite, ratio, 0.0)) / jnp.maximum(jnp.sum(finite), 1)
        return pmcl.ObjectiveValue(loss, jnp.mean(finite))


class Anchor(pmcl.AbstractStrategy):
    """Weights are drawn towards those of before the task, and the tasks are counted."""

    strength: float = 1.0

    def begin(self, state, now):
        return {"weights": now.weights, "tasks": 0 if state is None else state["tasks"]}

    def penalty(self, state, weights):
        change = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), weights, state["weights"])
        return self.strength * sum(jax.tree.leaves(change))

    def end(self, state, trace, now):
        return {"weights": now.weights, "tasks": state["tasks"] + 1}


class Newest(pmcl.AbstractMemory):
    """The rows that came last."""

    capacity: int
    per_task: bool = False

    def choose(self, among, rng):
        return np.arange(len(among.points) - self.capacity, len(among.points))


def widths(tree: xr.DataTree) -> xr.Dataset:
    """Standard deviation of every parameter, dataset by dataset."""
    return tree["posterior"].to_dataset().std(("chain", "draw"))


def about_widths(of: writing.AtHand, verdicts: list[Verdict]) -> Section | None:
    if of.idata is None:
        return None
    verdicts.append(Verdict(True, f"Widest: {float(widths(of.idata)['mu'].max()):.3f}."))
    return Section("widths", "How wide", "Standard deviations.")


def weights(posterior: pmcl.AmortizedPosterior) -> np.ndarray:
    leaves = jax.tree.leaves(eqx.filter(posterior.amortizer, eqx.is_inexact_array))
    return np.concatenate([np.ravel(x) for x in leaves])


@pytest.fixture
def model() -> pm.Model:
    with pm.Model(coords={"obs": range(6)}) as built:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=np.zeros(6), dims="obs")
    return built


def test_one_of_each(model: pm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = pmcl.Network(
        Sums(scale=0.5), pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=8)
    )
    quiet = {"random_seed": 0, "progressbar": False}
    posterior = pmcl.fit_amortized(model, network=network, steps=150, **quiet)
    y = np.random.default_rng(0).normal(2, 1, size=(6, 6))
    options = {"objective": ReverseDivergence(), "steps": 10, "patience": None, **quiet}
    adapted = posterior.adapt({"y": y}, name="one", strategy=Anchor(), **options)
    adapted = adapted.adapt({"y": y + 1}, name="two", **options)
    (state,) = adapted.states
    assert state.kind == "Anchor" and state.state["tasks"] == 2
    # a stronger anchor leaves the weights nearer
    held = posterior.adapt({"y": y}, name="one", strategy=Anchor(strength=1e6), **options)
    moved = [np.abs(weights(p) - weights(posterior)).max() for p in (adapted, held)]
    assert moved[1] < moved[0] / 2

    data = {"y": y}
    tree = adapted.sample(data, 1000, **quiet)
    # conjugate: precision 1 + 6
    np.testing.assert_allclose(widths(tree)["mu"], 7**-0.5, rtol=0.1)

    # one line in the list of a state's specifications
    with pytest.raises(pmcl.StateError, match=r"Sums|Anchor"):
        pmcl.save(adapted, tmp_path / "a.zarr.zip")
    for kind in (Sums, Anchor):
        monkeypatch.setitem(KNOWN, kind.__name__, kind)
    path = tmp_path / "b.zarr.zip"
    pmcl.save(posterior, path)
    assert pmcl.load(path, model).network == network

    # and one in the list of the page's sections
    monkeypatch.setattr(writing, "SECTIONS", [*writing.SECTIONS, about_widths])
    page = pmcl.report(adapted, tmp_path / "r.html", tree, calibration=False, **quiet)
    text = page.read_text()
    HTMLParser().feed(text)
    assert "How wide" in text and "Widest: 0." in text


def test_a_memory_of_ones_own(model: pm.Model) -> None:
    stream = pmcl.fit_online(
        model, memory=Newest(5), search=pmcl.Search(steps=30, draws=4), random_seed=0,
        progressbar=False,
    )  # fmt: skip
    y = np.random.default_rng(0).normal(1, 1, size=20)
    stream = stream.update({"y": y[:12]}, progressbar=False).update(
        {"y": y[12:]}, progressbar=False
    )
    np.testing.assert_array_equal(stream.memory["y"], y[-5:])
    exact = y.sum() / 21
    assert float(stream.sample(4000, random_seed=0)["posterior"]["mu"].mean()) == pytest.approx(
        exact, abs=0.1
    )
