"""Adaptation that loses part of a posterior is noticed, and done anew by one that does not."""

from functools import partial

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from lines import EXACT, OFF, ROWS, Line, line, posterior_of, y_of

from pmcl import Naive, PathGradient, TeacherDistillation
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.archive.records import task_from_tree, task_to_tree
from pmcl.compile import Density, compile_model, make_simulator, read_covariates
from pmcl.continual import coverage
from pmcl.continual.coverage import lost_nats
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
    asked = learn(posterior, task, "u", objective=PathGradient())
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


def test_where_no_teacher_is_trusted_it_is_said(ends, monkeypatch):
    compiled, task, _ = ends
    monkeypatch.setattr(coverage, "TeacherDistillation", partial(TeacherDistillation, khat=-1.0))
    posterior = of_line(compiled, line(0.0, 1.0, np.log(0.2)))
    with pytest.warns(
        UserWarning, match=r'lost part .* of \d of 4 datasets.*fallback="nuts"'
    ) as said:
        record = learn(posterior, task, "u").records[0]
    assert __file__ in [w.filename for w in said]  # where the user called
    assert record.lost and record.objective == PathGradient() and not record.taught
