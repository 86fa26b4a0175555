"""Drifts that batches tell: learned rates and change points, against closed forms."""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pmcl
from pmcl.online.drift import Possible, Restart

SIGMA, N = 0.5, 10


def mean_model() -> pm.Model:
    with pm.Model(coords={"row": range(1)}) as model:
        mean = pm.Normal("mean", 0, 2)
        pm.Normal("y", mean, SIGMA, observed=np.zeros(1), dims="row")
    return model


def batch(mean: float, seed: int) -> dict[str, np.ndarray]:
    return {"y": mean + SIGMA * np.random.default_rng(seed).normal(size=N)}


def log_evidence(ys, mean=0.0, variance=4.0):
    """Log density of rows that share a normal mean."""
    y = np.concatenate(ys)
    covariance = variance * np.ones((len(y), len(y))) + SIGMA**2 * np.eye(len(y))
    return stats.multivariate_normal(np.full(len(y), mean), covariance).logpdf(y)


@pytest.fixture(scope="module", params=["mean_field", "full", "low_rank"])
def level(request):
    return pmcl.fit_online(mean_model(), family=request.param, random_seed=0, progressbar=False)


MEMORIES = [None, pmcl.RandomCoreset(4), pmcl.ResidualMemory(4, draws=20)]


def drifting(stream, drift, memory=None):
    return replace(stream, settings=stream.settings._replace(drift=drift, memory=memory))


@pytest.mark.parametrize("memory", MEMORIES)
def test_the_evidence_of_a_batch_is_its_density_given_the_earlier_ones(level, memory):
    ys = [batch(1.0, i)["y"] for i in range(3)]
    stream = drifting(level, pmcl.Static(), memory)
    for y in ys:
        stream = stream.update({"y": y}, progressbar=False)
    whole = [log_evidence(ys[: i + 1]) for i in range(3)]
    expected = np.diff([0.0, *whole])
    np.testing.assert_allclose(stream.history["log_evidence"], expected, atol=1e-5)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_change_is_seen_and_what_was_before_is_forgotten(level, memory):
    """The posterior is that of the rows since, by Bayes' rule on what may have happened."""
    stream = drifting(level, pmcl.ChangePoint(0.05), memory)
    means = [1.0, 1.0, 1.0, -2.0, -2.0]
    ys = [batch(m, i)["y"] for i, m in enumerate(means)]
    for y in ys:
        stream = stream.update({"y": y}, progressbar=False)
    np.testing.assert_array_equal(stream.history["drift"], [0, 0, 0, 1, 0])
    y = np.concatenate(ys[3:])
    precision = 1 / 4 + len(y) / SIGMA**2
    q = stream.approximation()
    assert float(q.mean[0]) == pytest.approx(y.sum() / SIGMA**2 / precision, abs=1e-6)
    assert float(q.variance[0]) == pytest.approx(1 / precision, rel=1e-6)
    if memory is not None:  # and so are the rows that were stored
        assert set(stream.memory["batch"].values) <= {"3", "4"}
        assert stream.state.seen == 20
    assert "5 updates with 50 rows" in repr(stream)
    # what the last two batches said of a change before the last one
    stay = np.log(0.95) + log_evidence(ys[3:]) - log_evidence(ys[3:4])
    change = np.log(0.05) + log_evidence(ys[4:])
    assert stream.state.scores[1] == pytest.approx(change - stay, abs=1e-4)


@pytest.mark.parametrize("memory", MEMORIES)
def test_the_evidence_of_a_batch_does_not_know_whether_a_change_came(level, memory):
    """Its density before it is seen: of all that may have happened, by the law of probability."""
    stream = drifting(level, pmcl.ChangePoint(0.05), memory)
    ys = [batch(m, i)["y"] for i, m in enumerate([1.0, 1.0, -2.0])]
    for y in ys:
        stream = stream.update({"y": y}, progressbar=False)
    expected = [log_evidence(ys[:1])]
    for i in (1, 2):
        stay = log_evidence(ys[: i + 1]) - log_evidence(ys[:i])
        change = log_evidence(ys[i : i + 1])
        expected.append(np.logaddexp(np.log(0.95) + stay, np.log(0.05) + change))
    np.testing.assert_allclose(stream.history["log_evidence"], expected, atol=1e-4)


def test_batches_of_one_time_are_learned_by_every_drift(level):
    """As if they had come together, and foretold by the drift that was best before them."""
    drift = pmcl.LearnedDrift((pmcl.Static(), pmcl.Wiener(0.2)))
    ys = [batch(m, 5 + i)["y"] for i, m in enumerate([0.0, 1.0, 1.5, 3.0])]
    apart, together = drifting(level, drift), drifting(level, drift)
    alone = [drifting(level, one) for one in drift.drifts]
    for y, time in zip(ys, [0.0, 1.0, 1.0, 2.0], strict=True):
        apart = apart.update({"y": y}, time=time, progressbar=False)
        alone = [s.update({"y": y}, time=time, progressbar=False) for s in alone]
    for y in (ys[0], np.concatenate(ys[1:3]), ys[3]):
        together = together.update({"y": y}, progressbar=False)
    for a, b in zip(apart.state.branches, together.state.branches, strict=True):
        np.testing.assert_allclose(a.mean, b.mean, atol=1e-6)
        np.testing.assert_allclose(a.variance, b.variance, rtol=1e-6)
    np.testing.assert_allclose(apart.state.scores, together.state.scores, atol=1e-4)
    each = np.stack([s.history["log_evidence"].values for s in alone])
    before = np.argmax(np.cumsum(each[:, 1:], axis=1), axis=0)[:2]  # the first batch tells nothing
    shown = [0, 0, *before]
    np.testing.assert_allclose(apart.history["log_evidence"], each[shown, np.arange(4)], atol=1e-4)


def test_no_change_is_seen_where_there_is_none(level):
    stream = drifting(level, pmcl.ChangePoint(0.05))
    for i in range(6):
        stream = stream.update(batch(0.7, 10 + i), progressbar=False)
    assert not stream.history["drift"].any()


def test_the_likelier_the_longer_the_time():
    stay, change = pmcl.ChangePoint(0.1, scale=2.0).ways(4.0)
    assert isinstance(change, Possible)
    assert isinstance(change.drift, Restart)
    assert np.exp(stay.log_prior) == pytest.approx(0.81)
    assert np.exp(change.log_prior) == pytest.approx(0.19)


def test_a_rate_is_learned_from_what_was_foretold(level):
    """A mean that wanders: of four rates the one that it wanders with; none where it stands."""
    rates = (1e-4, 1e-2, 0.1)
    drift = pmcl.LearnedDrift((pmcl.Static(), *(pmcl.Wiener(r) for r in rates)))
    rng = np.random.default_rng(1)
    for true, expected in ((0.1, {2, 3}), (0.0, {0, 1})):
        stream, mean = drifting(level, drift), 0.0
        scores = np.zeros(4)
        alone = [drifting(level, one) for one in drift.drifts]
        for i in range(20):
            mean += np.sqrt(true) * 2.0 * rng.normal()
            data = batch(mean, 100 + i)
            stream = stream.update(data, progressbar=False)
            if true == 0:
                alone = [s.update(data, progressbar=False) for s in alone]
        scores = np.asarray(stream.state.scores)
        assert int(np.argmax(scores)) in expected
        assert scores.max() == 0.0
        later = stream.approximation(time=stream.state.time + 1)
        now = stream.approximation()
        rate = (0.0, *rates)[int(np.argmax(scores))]
        assert float(later.variance[0] - now.variance[0]) == pytest.approx(4 * rate, abs=1e-6)
    # each is followed as if it were alone, and scored by all that it foretold
    best = alone[int(np.argmax(scores))]
    np.testing.assert_allclose(best.approximation().mean, stream.approximation().mean, atol=1e-9)
    foretold = np.array([s.history["log_evidence"].values[1:].sum() for s in alone])
    np.testing.assert_allclose(scores, foretold - foretold.max(), atol=1e-3)


def test_drifts_that_are_told_are_saved(tmp_path):
    stream = pmcl.fit_online(
        mean_model(),
        drift=pmcl.LearnedDrift((pmcl.Static(), pmcl.BayesianForgetting(0.2)), kept=0.9),
        family="full",
        random_seed=0,
        progressbar=False,
    )
    for i in range(2):
        stream = stream.update(batch(i, i), progressbar=False)
    pmcl.save(stream, tmp_path / "learned.zarr.zip")
    again = pmcl.load(tmp_path / "learned.zarr.zip", mean_model())
    assert again.state.scores == stream.state.scores
    assert again.settings.drift == stream.settings.drift
    both = [s.update(batch(3.0, 5), progressbar=False) for s in (stream, again)]
    assert both[0].state.scores == both[1].state.scores


def test_drifts_that_make_no_sense_are_refused():
    for make, message in [
        (lambda: pmcl.ChangePoint(1.0), "ChangePoint: expected a probability between 0 and 1"),
        (lambda: pmcl.LearnedDrift((pmcl.Static(),)), "LearnedDrift: expected at least two of"),
        (
            lambda: pmcl.LearnedDrift((pmcl.Static(), pmcl.Static()), kept=0.0),
            "expected kept above 0",
        ),
        (
            lambda: pmcl.fit_online(
                mean_model(),
                drift=pmcl.LearnedDrift((pmcl.Static(), pmcl.Wiener(0.1))),
                memory=pmcl.RandomCoreset(3),
            ),
            "each would need a memory of its own: expected none",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
