"""Adaptation that loses part of a posterior is noticed, and done anew by one that does not."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from lines import EXACT, OFF, ROWS, Line, line, posterior_of, y_of

from pmcl import (
    AbstractObjective,
    Naive,
    PathGradient,
    Replay,
    SynapticIntelligence,
    TeacherDistillation,
)
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.archive.records import task_from_tree, task_to_tree
from pmcl.compile import Density, compile_model, make_simulator, read_covariates
from pmcl.continual import coverage
from pmcl.continual.coverage import lost_nats
from pmcl.continual.objectives.objectives import ObjectiveValue
from pmcl.data.reading import as_task
from pmcl.data.task import Layout
from pmcl.runtime import precision


def of_line(compiled, q: Line) -> AmortizedPosterior:
    return posterior_of(compiled, make_simulator(compiled, read_covariates({}, ())), q)


def learn(posterior: AmortizedPosterior, task, name: str, **options) -> AmortizedPosterior:
    return posterior.adapt(
        task, name=name, strategy=Naive(), learning_rate=0.05, clip=10.0, progressbar=False,
        **{"steps": 300, **options},
    )  # fmt: skip


@pytest.fixture(scope="module")
def ends():
    """Posterior under a likelihood whose support ends: uniform over an interval, less the prior."""
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        mu = pm.Normal("mu", 0, 10)
        pm.Uniform("y", mu - 1, mu + 1, observed=np.zeros(ROWS), dims="obs")
    compiled = compile_model(model)
    rng = np.random.default_rng(0)
    y = np.array([-3.0, 0.0, 2.0, 5.0])[:, None] + rng.uniform(-1, 1, size=(4, ROWS))
    return compiled, as_task({"y": y}, Layout.of(compiled, "obs")), y


def test_what_was_lost_is_the_difference_of_two_divergences(normal_mean):
    density = Density(normal_mean.compiled, "obs")
    task = as_task({"y": y_of(np.arange(6.0))}, Layout.of(normal_mean.compiled, "obs"))
    a, b, c = EXACT.numbers

    def forward(factor: float) -> float:
        """KL(p || q) for a q whose sd is `factor` times that of p."""
        return np.log(factor) + 0.5 / factor**2 - 0.5

    for before, after in ((1.0, 0.5), (1.5, 0.6), (0.6, 1.0), (1.0, 1.0)):
        q = [line(a, b, c + np.log(f)) for f in (before, after)]
        with precision.scope():
            found = lost_nats(*q, density, task, seed=1)
        expected = forward(after) - forward(before)
        assert found.mean() == pytest.approx(expected, abs=0.1), (before, after)


@pytest.fixture(scope="module")
def two_modes():
    """Posterior of a number of which only the square is told: modes near 2 and -2."""
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        mu = pm.Normal("mu", 0, 3)
        pm.Normal("y", mu**2, 4, observed=np.zeros(ROWS), dims="obs")
    compiled = compile_model(model)
    y = 4 + 4 * np.random.default_rng(1).normal(size=(24, ROWS))
    return compiled, as_task({"y": y}, Layout.of(compiled, "obs")), y


def moments(y: np.ndarray, q_sd: float) -> tuple[float, float]:
    """Variance of one posterior of `two_modes`, and E_p[log q] for q = N(0, q_sd), on a grid."""
    u = np.linspace(-6, 6, 20_001)
    log_p = -0.5 * (u / 3) ** 2 - 0.5 * ((y[:, None] - u**2) ** 2).sum(axis=0) / 16
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    log_q = -0.5 * (u / q_sd) ** 2 - np.log(q_sd) - 0.5 * np.log(2 * np.pi)
    return float(p @ u**2), float(p @ log_q)


def test_a_mode_that_was_lost_is_seen(two_modes):
    compiled, task, y = two_modes
    both, one = line(0.0, 0.0, np.log(2.0)), line(2.0, 0.0, np.log(0.5))
    with precision.scope():
        density = Density(compiled, "obs")
        lost = lost_nats(both, one, density, task, seed=0)
        found = lost_nats(one, both, density, task, seed=0)
    expected = []
    for v in y:
        square, log_both = moments(v, 2.0)
        # half of the draws are at the mode that is four away: E (u - 2)^2 is E u^2 + 4
        log_one = -0.5 * (square + 4) / 0.5**2 - np.log(0.5) - 0.5 * np.log(2 * np.pi)
        expected.append(log_both - log_one)
    assert lost.mean() == pytest.approx(np.mean(expected), rel=0.1) and np.mean(expected) > 10
    # the same with its sign turned
    assert found.mean() == pytest.approx(-np.mean(expected), rel=0.1)


def test_two_modes_are_learned_from_refined_draws(two_modes):
    compiled, _, y = two_modes
    y = y[:3]
    task = as_task({"y": y}, Layout.of(compiled, "obs"))
    posterior = of_line(compiled, line(0.0, 0.0, np.log(2.0)))
    now = learn(posterior, task, "u")
    assert now.records[0].taught and set(now.records[0].lost) <= set(task.names)
    # forwards the nearest normal has the posterior's moments
    a, b, c = now.amortizer.numbers
    sd = np.sqrt(np.mean([moments(v, 1.0)[0] for v in y]))
    assert np.exp(c) == pytest.approx(sd, rel=0.1)
    assert np.abs(a + b * y.mean(axis=1)).max() < 0.3
    asked = learn(posterior, task, "u", objective=PathGradient())
    assert np.exp(asked.amortizer.numbers[2]) < 0.5  # which has gone to one of them


def test_where_nothing_is_lost_the_path_gradient_stays(normal_mean):
    posterior = of_line(normal_mean.compiled, OFF)
    task = as_task({"y": y_of([1, 2, 3])}, Layout.of(normal_mean.compiled, "obs"))
    record = learn(posterior, task, "u").records[0]
    assert record.objective == PathGradient() and record.lost == () and not record.taught


def test_a_support_that_ends_is_learned_from_refined_draws(ends, tmp_path):
    compiled, task, y = ends
    posterior = of_line(compiled, line(0.0, 1.0, np.log(0.2)))
    now = learn(posterior, task, "u", checkpoint=tmp_path / "u")
    record = now.records[0]
    assert record.taught and len(record.lost) >= 2 and set(record.lost) <= set(task.names)
    assert {p.name for p in tmp_path.iterdir()} == {"u", "u-teacher"}
    # a normal distribution comes as near to a uniform one, forwards, as its moments allow
    sd = (y.min(axis=1) + 1 - (y.max(axis=1) - 1)) / np.sqrt(12)
    assert np.exp(now.amortizer.numbers[2]) < 2 * sd.max()
    asked = learn(posterior, task, "u", objective=PathGradient(), patience=None)
    assert asked.records[0].lost == () and not asked.records[0].taught
    assert np.exp(asked.amortizer.numbers[2]) > 2 * np.exp(now.amortizer.numbers[2])
    # said in the history, kept in the state, and gone on with
    told = now.history["adaptation"].isel(task=0)
    assert str(told["objective"].values) == "TeacherDistillation()"
    assert str(told["lost"].values) == ", ".join(record.lost)
    tree = xr.DataTree.from_dict(task_to_tree(record))
    assert task_from_tree(tree, where="here").lost == record.lost
    del tree.attrs["lost"]  # as in states of before
    assert task_from_tree(tree, where="here").lost == ()
    later = learn(now, task, "v").records[1]
    assert later.objective == TeacherDistillation() and later.lost == ()


class Narrowing(AbstractObjective):
    """Draws nearer and nearer to each other: an objective that makes every network worse."""

    draws: int = eqx.field(static=True, default=2)

    def __call__(self, amortizer, density, example, key):
        context = example.context(amortizer)
        z, _ = amortizer.draw(key, self.draws, context)
        return ObjectiveValue(jnp.mean((z - jnp.mean(z)) ** 2), jnp.ones(()))


def test_weights_that_became_worse_are_given_back(normal_mean):
    posterior = of_line(normal_mean.compiled, OFF)
    data = as_task({"y": y_of([1, 2, 3])}, Layout.of(normal_mean.compiled, "obs"))
    both = (Replay(), SynapticIntelligence())
    options = {"objective": Narrowing(), "strategy": both, "name": "u", "learning_rate": 0.05}
    with pytest.warns(UserWarning, match=r"as it was before 'u'.*300 steps of Narrowing") as said:
        now = posterior.adapt(data, steps=300, **options, progressbar=False)
    assert __file__ in [w.filename for w in said]  # where the user called
    record = now.records[0]
    assert record.record.stopped == "given back" and record.record.steps == 300
    assert np.array_equal(now.amortizer.numbers, OFF.numbers)
    assert np.array_equal(record.after.efficiency, record.before.efficiency)
    # what strategies keep is of the network that there is: the task's data, and no move of weights
    assert len(now.memory) == 1
    importance = now.states[1].state.importance
    assert max(float(np.abs(v).max()) for v in jax.tree.leaves(importance)) == 0.0
    assert str(now.history["adaptation"]["stopped"].values[0]) == "given back"
    paper = posterior.adapt(data, steps=300, patience=None, **options, progressbar=False)
    assert paper.records[0].record.stopped == "all steps taken"
    assert paper.amortizer.numbers[2] < OFF.numbers[2] - 1
    assert paper.records[0].after.efficiency.mean() < 0.5 * record.before.efficiency.mean()


def test_where_weights_are_given_back_refined_draws_are_tried(normal_mean, monkeypatch):
    monkeypatch.setattr(coverage, "PathGradient", Narrowing)
    data = as_task({"y": y_of([1, 2, 3])}, Layout.of(normal_mean.compiled, "obs"))
    now = learn(of_line(normal_mean.compiled, OFF), data, "u")
    record = now.records[0]
    assert record.taught and record.lost == data.names
    assert now.amortizer.divergence(data.values["y"]).max() < 0.05  # forwards, the exact posterior


def test_where_no_teacher_is_trusted_it_is_said(ends, monkeypatch):
    compiled, task, _ = ends
    monkeypatch.setattr(coverage, "TeacherDistillation", partial(TeacherDistillation, khat=-1.0))
    posterior = of_line(compiled, line(0.0, 1.0, np.log(0.2)))
    with pytest.warns(
        UserWarning, match=r'lost part .* of \d of 4 datasets.*fallback="nuts"'
    ) as said:
        record = learn(posterior, task, "u", patience=None).records[0]
    assert __file__ in [w.filename for w in said]  # where the user called
    assert record.lost and record.objective == PathGradient() and not record.taught
    with pytest.warns(UserWarning, match="as it was before 'u'"):  # nor do weights that are worse
        record = learn(posterior, task, "u").records[0]
    assert record.lost == task.names and record.record.stopped == "given back"
