"""Adaptation that loses part of a posterior is noticed, and done anew by one that does not."""

from functools import partial

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from lines import EXACT, OFF, ROWS, Line, line, posterior_of, y_of

from pmcl import Naive, PathGradient, TeacherDistillation
from pmcl.compile import Density, compile_model, make_simulator, precision, read_covariates
from pmcl.continual import coverage
from pmcl.continual.coverage import lost_nats
from pmcl.data import Layout, as_task
from pmcl.posterior import AmortizedPosterior
from pmcl.state.records import task_from_tree, task_to_tree


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
            found = lost_nats(*q, density, task, seed=0)
        expected = forward(after) - forward(before)
        assert found.mean() == pytest.approx(expected, abs=0.1), (before, after)


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
