"""`fit_online`: streams against closed forms, batch posteriors and themselves."""

import io
import logging
import re
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy import special, stats

import pmcl
from pmcl.compile import UnsupportedModelError
from pmcl.online.beginning import begin
from pmcl.online.gaussian import MeanField
from pmcl.online.memory import Candidates, Stored
from pmcl.online.state import as_batch
from pmcl.online.step import update
from pmcl.online.stream import warn_of

SIGMA = 0.8


def linear_model() -> pm.Model:
    with pm.Model(coords={"row": range(1), "predictor": ["a", "b", "c"]}) as model:
        X = pm.Data("X", np.zeros((1, 3)), dims=("row", "predictor"))
        w = pm.Normal("w", 0, 1, dims="predictor")
        pm.Deterministic("twice", 2 * w, dims="predictor")
        mean = pm.Deterministic("mean", X @ w, dims="row")
        pm.Normal("y", mean, SIGMA, observed=np.zeros(1), dims="row")
    return model


def linear(n: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return {"X": X, "y": X @ [1.0, -0.5, 0.2] + SIGMA * rng.normal(size=n)}


def logistic_model() -> pm.Model:
    with pm.Model(coords={"row": range(1), "predictor": range(2)}) as model:
        X = pm.Data("X", np.zeros((1, 2)), dims=("row", "predictor"))
        w = pm.Normal("w", 0, 1.5, dims="predictor")
        pm.Bernoulli("y", logit_p=X @ w, observed=np.zeros(1, int), dims="row")
    return model


def logistic(n: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return {"X": X, "y": rng.binomial(1, special.expit(X @ [1.5, -1.0]))}


def on_a_head(n: int, seed: int) -> dict[str, np.ndarray]:
    return {**logistic(n, seed), "head_of_row": np.full(n, seed % 3)}


QUICK = pmcl.Search(steps=600, draws=8, learning_rate=5e-2)


@pytest.fixture(scope="module")
def line():
    return pmcl.fit_online(linear_model(), random_seed=0, progressbar=False)


@pytest.fixture(scope="module")
def curve():
    return pmcl.fit_online(logistic_model(), search=QUICK, random_seed=0, progressbar=False)


def with_settings(stream, **settings):
    """The same compiled model under other settings."""
    return replace(stream, settings=stream.settings._replace(**settings))


def test_a_stream_of_rows_is_the_papers_recursion(line):
    """vcl.txt, appendix F, eqs. 6 and 7, through the public calls."""
    data, stream = linear(12, 0), line
    m, v = np.zeros(3), np.ones(3)
    for i in range(12):
        stream = stream.update({k: x[i : i + 1] for k, x in data.items()}, progressbar=False)
        x, y = data["X"][i], data["y"][i]
        m = np.linalg.solve(
            np.eye(3) + v[:, None] * np.outer(x, x) / SIGMA**2, v * x * y / SIGMA**2 + m
        )
        v = 1 / (1 / v + x**2 / SIGMA**2)
    q = stream.approximation()
    np.testing.assert_allclose(q.mean, m, atol=1e-6)
    np.testing.assert_allclose(q.variance, v, rtol=1e-6)
    assert stream.problem.gaussian
    assert stream.history["exact"].values.all()
    assert line.state.updates == 0
    np.testing.assert_array_equal(line.approximation().mean, 0)


def test_by_search_a_stream_of_rows_is_the_papers_recursion_too(line):
    """To 0.02 of the posterior's sd, though every row's search begins where the last one ended."""
    data = linear(12, 0)
    exactly, problem = (replace(line.problem, gaussian=g) for g in (True, False))
    search = pmcl.Search(steps=3000, draws=50, learning_rate=2e-2)
    settings = line.settings._replace(search=search)
    found = exact = line.state
    for i in range(12):
        row = {k: x[i : i + 1] for k, x in data.items()}
        arrived = Stored(row, np.full(1, float(i)), np.full(1, str(i)))
        with jax.enable_x64(True):
            exact, _ = update(exactly, exact, arrived, line.settings, jax.random.key(i))
            found, info = update(problem, found, arrived, settings, jax.random.key(i))
        assert info.steps == 3000
    sd = np.exp(exact.q.log_sd)
    np.testing.assert_allclose((found.q.mean - exact.q.mean) / sd, 0, atol=0.02)
    np.testing.assert_allclose(found.q.log_sd - exact.q.log_sd, 0, atol=0.02)


def test_memory_of_everything_is_the_batch_posterior(line):
    """Whatever the batches; in the exact case to rounding."""
    data = linear(40, 1)
    whole = line.update(data, progressbar=False).approximation()
    stream = with_settings(line, memory=pmcl.RandomCoreset(1000))
    for part in np.split(np.arange(40), [7, 8, 25]):
        stream = stream.update({k: x[part] for k, x in data.items()}, progressbar=False)
    found = stream.approximation()
    np.testing.assert_allclose(found.mean, whole.mean, atol=1e-10)
    np.testing.assert_allclose(found.log_sd, whole.log_sd, atol=1e-10)
    assert len(stream.state.memory) == 40
    np.testing.assert_array_equal(stream.state.q.mean, line.state.q.mean)


def test_words_in_a_table_are_no_datasets(line):
    """A stream has one posterior: who measured a row is passed over, without a warning."""
    data = linear(6, 0)
    table = pd.DataFrame({f"X[{k}]": data["X"][:, i] for i, k in enumerate("abc")})
    table = table.assign(y=data["y"], who=[*"uvwuvw"]).set_index(np.arange(6) + 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream = line.update(table, progressbar=False)
        drawn = stream.predict(table.drop(columns="y"), draws=20)
        seen = stream.log_predictive(table, draws=20)
    plain = line.update(data, progressbar=False)
    np.testing.assert_array_equal(stream.approximation().mean, plain.approximation().mean)
    np.testing.assert_array_equal(drawn["y"], plain.predict({"X": data["X"]}, draws=20)["y"])
    np.testing.assert_array_equal(seen, plain.log_predictive(data, draws=20))


def test_batches_have_values_that_their_rows_share():
    """The gain of an instrument, a number with every batch; the exact posterior of all rows."""

    def gauged(names):
        with pm.Model(coords={"row": range(1), "predictor": names}) as model:
            X = pm.Data("X", np.zeros((1, len(names))), dims=("row", "predictor"))
            gain = pm.Data("gain", 1.0)
            w = pm.Normal("w", 0, 1, dims="predictor")
            pm.Normal("y", gain * (X @ w), SIGMA, observed=np.zeros(1), dims="row")
        return model

    stream = pmcl.fit_online(
        gauged(["a", "b", "c"]), covariates=["X", "gain"], family="full", random_seed=0,
        progressbar=False,
    )  # fmt: skip
    stream = stream.grow(gauged(["a", "b", "c"]))
    precision, shift = np.eye(3), np.zeros(3)
    for seed, gain in enumerate((1.0, 2.0, 0.5)):
        data = linear(6, seed)
        X = gain * data["X"]
        if seed:
            at, spread = X @ np.linalg.solve(precision, shift), X @ np.linalg.solve(precision, X.T)
            expected = stats.norm(at, np.sqrt(np.diag(spread) + SIGMA**2)).logpdf(data["y"])
            found = stream.log_predictive({**data, "gain": gain}, draws=4000)
            np.testing.assert_allclose(found, expected, atol=0.1)
        precision, shift = precision + X.T @ X / SIGMA**2, shift + X.T @ data["y"] / SIGMA**2
        stream = stream.update({**data, "gain": gain}, progressbar=False)
    q = stream.approximation()
    np.testing.assert_allclose(q.mean, np.linalg.solve(precision, shift), atol=1e-10)
    np.testing.assert_allclose(q.precision, precision, atol=1e-10)
    drawn = stream.predict({"X": np.eye(3), "gain": 4.0}, draws=4000)["y"].mean(["chain", "draw"])
    np.testing.assert_allclose(drawn, 4 * np.asarray(q.mean), atol=0.1)


@pytest.mark.parametrize("memory", [pmcl.RandomCoreset(50), pmcl.ResidualMemory(50, draws=20)])
def test_a_prior_that_is_not_normal_counts_once(memory):
    """While all rows are stored nothing is known but it, however many batches have come."""
    with pm.Model(coords={"row": range(1)}) as model:
        pm.Normal("y", 0, pm.HalfNormal("sigma", 0.3), observed=np.zeros(1), dims="row")
    y = np.random.default_rng(0).normal(size=12)
    search = pmcl.Search(steps=2000, draws=20, learning_rate=3e-2)
    stream = pmcl.fit_online(model, memory=memory, search=search, random_seed=0, progressbar=False)
    whole = stream.update({"y": y}, progressbar=False).approximation()
    for part in (y[:4], y[4:8], y[8:]):
        stream = stream.update({"y": part}, progressbar=False)
    q = stream.approximation()
    sd = float(np.exp(whole.log_sd[0]))
    assert float(q.mean[0] - whole.mean[0]) / sd == pytest.approx(0, abs=0.05)
    assert float(q.log_sd[0] - whole.log_sd[0]) == pytest.approx(0, abs=0.05)
    np.testing.assert_array_equal(stream.state.q.mean, stream.problem.prior.mean)


def test_a_prior_that_is_not_normal_counts_once_when_rows_have_gone():
    """The prior's own factor is in what a residual memory divides the stored rows' out of."""
    with pm.Model(coords={"row": range(1)}) as model:
        pm.Normal("y", 0, pm.HalfNormal("sigma", 0.3), observed=np.zeros(1), dims="row")
    y = np.random.default_rng(0).normal(size=12)
    search = pmcl.Search(steps=2000, draws=20, learning_rate=3e-2)
    memory = pmcl.ResidualMemory(5, draws=200)
    stream = pmcl.fit_online(model, memory=memory, search=search, random_seed=0, progressbar=False)
    whole = stream.update({"y": y}, progressbar=False).approximation()
    for part in (y[:4], y[4:8], y[8:]):
        stream = stream.update({"y": part}, progressbar=False)
    assert len(stream.state.memory) == 5
    q = stream.approximation()
    sd = float(np.exp(whole.log_sd[0]))
    assert float(q.mean[0] - whole.mean[0]) / sd == pytest.approx(0, abs=0.2)
    assert float(q.log_sd[0] - whole.log_sd[0]) == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize("memory", [None, pmcl.RandomCoreset(10, per_task=True),
                                    pmcl.KCenterCoreset(12), pmcl.ResidualMemory(12)])  # fmt: skip
def test_memories_of_a_gaussian_likelihood_lose_no_precision(line, memory):
    """Precisions of a Gaussian likelihood add up, whichever rows are stored."""
    stream = with_settings(line, memory=memory)
    data = [linear(20, 10 + i) for i in range(3)]
    for batch in data:
        stream = stream.update(batch, progressbar=False)
    X = np.concatenate([b["X"] for b in data])
    precision = 1 + (X**2).sum(axis=0) / SIGMA**2
    np.testing.assert_allclose(stream.approximation().variance, 1 / precision, rtol=1e-8)
    stored = {None: 0}.get(memory, 30 if memory and memory.per_task else 12)
    assert len(stream.state.memory) == stored == int(stream.history["stored"][-1])
    if memory is not None:
        # what is stored is not in q
        out = stream.state.memory.data["X"]
        rest = precision - (out**2).sum(axis=0) / SIGMA**2
        np.testing.assert_allclose(1 / np.asarray(stream.state.q.variance), rest, rtol=1e-6)


@pytest.mark.parametrize("memory", [None, pmcl.RandomCoreset(1000), pmcl.ResidualMemory(1000)])
def test_rows_of_a_power_count_as_if_they_had_come_so_often(line, memory):
    """Exactly, also where likelihoods have lost weight with their age."""
    drift = pmcl.BayesianForgetting(0.2)
    plain = with_settings(line, memory=memory, drift=drift)
    firm = with_settings(line, memory=memory, drift=drift, power=3.0)
    for i in range(2):
        data = linear(6, i)
        often = {k: np.repeat(v, 3, axis=0) for k, v in data.items()}
        plain = plain.update(often, time=2.0 * i, progressbar=False)
        firm = firm.update(data, time=2.0 * i, progressbar=False)
    for a, b in zip(firm.approximation(), plain.approximation(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
    later = (s.approximation(time=5.0) for s in (firm, plain))
    for a, b in zip(*later, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("strength", [0.0, 5.0])
def test_means_are_held_by_what_was_learned_times_a_strength(line, strength):
    """Of the second batch the widths are Bayes' rule; the mean is held; by a search, too."""
    stream = with_settings(line, strength=strength)
    first, second = linear(6, 0), linear(5, 1)
    stream = stream.update(first, progressbar=False)
    m, v = stream.approximation().mean, stream.approximation().variance
    assert_normal(line.update(first, progressbar=False).approximation(), m, v, 1e-12)
    X = second["X"]
    slope = X.T @ (second["y"] - X @ m) / SIGMA**2
    held = np.diag(1 + strength * (1 / v - 1)) + X.T @ X / SIGMA**2
    mean = m + np.linalg.solve(held, slope)
    plain = m + np.linalg.solve(np.diag(1 / v) + X.T @ X / SIGMA**2, slope)
    assert np.abs(mean - plain).max() > 0.05
    variance = 1 / (1 / v + (X**2).sum(axis=0) / SIGMA**2)
    assert_normal(stream.update(second, progressbar=False).approximation(), mean, variance, 1e-8)
    searching = with_settings(stream, search=pmcl.Search(steps=3000, draws=50))
    searching = replace(searching, problem=replace(stream.problem, gaussian=False))
    found = searching.update(second, progressbar=False).approximation()
    np.testing.assert_allclose(found.mean, mean, atol=0.01)
    np.testing.assert_allclose(found.variance, variance, rtol=0.03)


def assert_normal(q, mean, variance, tolerance: float) -> None:
    np.testing.assert_allclose(q.mean, mean, rtol=tolerance)
    np.testing.assert_allclose(q.variance, variance, rtol=tolerance)


def test_a_search_for_rows_of_a_power(curve):
    data = logistic(15, 4)
    often = {k: np.repeat(v, 4, axis=0) for k, v in data.items()}
    mean, sd = mean_field(often)
    assert np.log(mean_field(data)[1] / sd).min() > 0.4
    found = with_settings(curve, power=4.0).update(data, progressbar=False).approximation()
    np.testing.assert_allclose(found.mean, mean, atol=0.05)
    np.testing.assert_allclose(found.log_sd, np.log(sd), atol=0.05)


def mean_field(data: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The mean-field normal of the logistic model that maximises the bound, by quadrature."""
    from scipy.optimize import minimize

    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    a = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    w = np.outer(weights, weights).ravel()
    sign = 2 * data["y"] - 1

    def loss(p):
        mean, sd = p[:2], np.exp(p[2:])
        z = mean + sd * a
        value = w @ -np.logaddexp(0, -sign * (z @ data["X"].T)).sum(axis=1)
        kl = (sd**2 + mean**2) / (2 * 1.5**2) - np.log(sd)
        return kl.sum() - value

    found = minimize(loss, np.zeros(4), method="BFGS").x
    return found[:2], np.exp(found[2:])


def test_a_search_finds_the_best_mean_field_normal(curve):
    data = logistic(60, 0)
    stream = with_settings(curve, search=pmcl.Search(steps=3000, draws=20, learning_rate=3e-2))
    q = stream.update(data, progressbar=False).approximation()
    mean, sd = mean_field(data)
    np.testing.assert_allclose((q.mean - mean) / sd, 0, atol=0.02)
    np.testing.assert_allclose(np.exp(q.log_sd) / sd, 1, atol=0.02)


def test_a_memory_of_everything_is_the_batch_mean_field_posterior(curve):
    data = logistic(60, 0)
    stream = with_settings(
        curve,
        memory=pmcl.RandomCoreset(100),
        search=pmcl.Search(steps=3000, draws=20, learning_rate=3e-2),
    )
    for part in (slice(0, 30), slice(30, 60)):
        stream = stream.update({k: v[part] for k, v in data.items()}, progressbar=False)
    mean, sd = mean_field(data)
    q = stream.approximation()
    np.testing.assert_allclose((q.mean - mean) / sd, 0, atol=0.02)
    np.testing.assert_allclose(np.exp(q.log_sd) / sd, 1, atol=0.02)


def compilations(run) -> set[str]:
    """Names of all that is compiled while something runs."""
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    logger = logging.getLogger("jax")
    logger.addHandler(handler)
    try:
        with jax.log_compiles(True):
            run()
    finally:
        logger.removeHandler(handler)
    return set(re.findall(r"Compiling jit\((\w+)\)", heard.getvalue()))


def test_batches_of_one_length_compile_once(curve):
    stream = with_settings(curve, memory=pmcl.ResidualMemory(15, draws=20))
    for i in range(2):
        stream = stream.update(logistic(20, i), progressbar=False)
    stream.log_predictive(logistic(20, 5))
    again = compilations(
        lambda: stream.update(logistic(20, 9), progressbar=False).log_predictive(logistic(20, 3))
    )
    assert again == set()
    longer = compilations(lambda: stream.update(logistic(57, 9), progressbar=False))
    ours = {"_chunk", "residuals", "_log_ratios", "_log_predictive"}
    assert longer & ours == {"_chunk", "residuals", "_log_ratios"}


FEW = pmcl.Search(steps=20, batch_size=10)


@pytest.mark.parametrize(
    ("stream", "settings", "batch"),
    [
        ("line", {}, linear),
        ("curve", {"search": FEW, "method": pmcl.ElasticWeightConsolidation(1.0)}, logistic),
        (
            "curve",
            {
                "search": FEW,
                "memory": pmcl.KCenterCoreset(8),
                "drift": pmcl.BayesianForgetting(0.1),
            },
            logistic,
        ),
        ("heads", {"search": FEW, "memory": pmcl.RandomCoreset(10)}, on_a_head),
    ],
    ids=["exact", "a point", "k-center and drift", "a network in minibatches"],
)
def test_the_third_update_compiles_nothing(stream, settings, batch, request):
    now = with_settings(request.getfixturevalue(stream), **settings)
    for i in range(2):
        now = now.update(batch(40, i), time=float(i * i), progressbar=False)
    found = compilations(lambda: now.update(batch(40, 3), time=9.0, progressbar=False))
    assert found == set()


def test_residual_memory_keeps_what_a_gaussian_does_not_fit(curve):
    """Rows near the boundary, and wrong ones: a row far on its own side says nothing."""
    stream = with_settings(curve, memory=pmcl.ResidualMemory(15))
    rng = np.random.default_rng(5)
    for i in range(4):
        data = logistic(40, 20 + i)
        far = {"X": np.array([[8.0, -6.0]]) * (1 + rng.random((20, 1))), "y": np.ones(20, int)}
        batch = {k: np.concatenate([data[k], far[k]]) for k in data}
        stream = stream.update(batch, progressbar=False)
    stored = stream.state.memory.data["X"]
    assert len(stored) == 15
    assert np.linalg.norm(stored, axis=1).max() < 6
    assert stream.history["clamped"].values.max() == 0
    mean, sd = mean_field(
        {k: np.concatenate([logistic(40, 20 + i)[k] for i in range(4)]) for k in ("X", "y")}
    )
    q = stream.approximation()
    assert np.abs((q.mean - mean) / sd).max() < 0.5


def test_drift_forgets(line):
    """Bayesian forgetting of a conjugate stream at irregular times, eq. 10 done at once."""
    drift, times = pmcl.BayesianForgetting(0.2, scale=2.0), [0.0, 1.0, 4.5]
    # one predictor at a time: the mean-field posterior is the posterior
    X = [np.eye(3), np.eye(3)[[0]], np.eye(3)[[0, 2]]]
    y = [np.array([1.0, 0.0, -1.0]), np.array([2.0]), np.array([0.5, 0.3])]
    for memory in (None, pmcl.RandomCoreset(2), pmcl.ResidualMemory(2)):
        stream = with_settings(line, drift=drift, memory=memory)
        for t, a, b in zip(times, X, y, strict=True):
            stream = stream.update({"X": a, "y": b}, time=t, progressbar=False)
        weights = np.concatenate(
            [np.full(len(b), 0.8 ** ((times[-1] - t) / 2)) for t, b in zip(times, y, strict=True)]
        )
        A, b = np.concatenate(X), np.concatenate(y)
        precision = 1 + (weights[:, None] * A**2).sum(axis=0) / SIGMA**2
        mean = (weights * b) @ A / SIGMA**2 / precision
        q = stream.approximation()
        np.testing.assert_allclose(q.variance, 1 / precision, rtol=1e-8)
        np.testing.assert_allclose(q.mean, mean, rtol=1e-8, atol=1e-10)
        # and what has not been looked at for long is not known any more
        late = stream.approximation(time=500.0)
        np.testing.assert_allclose(late.variance, 1, rtol=1e-6)
    with pytest.raises(ValueError, match="time: expected a finite number of at least 4.5"):
        stream.update({"X": X[0], "y": y[0]}, time=1.0)


def test_predictions(line):
    stream = line.update(linear(30, 3), name="first", progressbar=False)
    q = stream.approximation()
    new = linear(5, 4)
    found = stream.log_predictive(new, draws=20_000, random_seed=1)
    mean = new["X"] @ np.asarray(q.mean)
    sd = np.sqrt(SIGMA**2 + new["X"] ** 2 @ np.asarray(q.variance))
    assert found.dims == ("row",)
    np.testing.assert_allclose(found, stats.norm(mean, sd).logpdf(new["y"]), atol=0.02)
    drawn = stream.predict({"X": new["X"]}, draws=4000, random_seed=1)["y"]
    assert drawn.dims == ("chain", "draw", "row")
    np.testing.assert_allclose(drawn.mean(("chain", "draw")), mean, atol=5 * sd.max() / 4000**0.5)
    np.testing.assert_allclose(drawn.std(("chain", "draw")) / sd, 1, atol=0.06)
    draws = stream.sample(4000, random_seed=2)
    w = draws["posterior"]["w"]
    assert w.dims == ("chain", "draw", "predictor")
    assert list(w.coords["predictor"].values) == ["a", "b", "c"]
    np.testing.assert_allclose(draws["posterior"]["twice"], 2 * w)
    assert "mean" not in draws["posterior"]  # it depends on X
    sd = np.sqrt(np.asarray(q.variance))
    np.testing.assert_allclose(w.mean(("chain", "draw")), q.mean, atol=5 * sd.max() / 4000**0.5)
    np.testing.assert_allclose(w.std(("chain", "draw")) / sd, 1, atol=0.06)
    expected = stats.norm(q.mean, sd).logpdf(w.values).sum(axis=-1)
    np.testing.assert_allclose(draws["sample_stats"]["log_q"], expected, rtol=1e-6)


def test_single_precision_is_close_to_double(line):
    single = pmcl.fit_online(
        linear_model(), precision="single", random_seed=0, progressbar=False
    ).update(linear(30, 3), progressbar=False)
    double = line.update(linear(30, 3), progressbar=False)
    assert single.state.q.mean.dtype == np.float32
    np.testing.assert_allclose(single.approximation().mean, double.approximation().mean, atol=1e-4)
    np.testing.assert_allclose(
        single.log_predictive(linear(3, 0)), double.log_predictive(linear(3, 0)), atol=0.02
    )


def test_a_prior_that_is_not_normal_counts_as_it_is():
    """One scale parameter with half a dozen rows: the best normal of log sigma, by quadrature."""
    from scipy.optimize import minimize

    with pm.Model(coords={"row": range(1)}) as model:
        pm.Normal("y", 0, pm.HalfNormal("sigma", 2.0), observed=np.zeros(1), dims="row")
    y = np.array([0.3, -1.2, 0.8, 0.1, -0.4, 1.9])
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()

    def log_joint(z):
        sigma = np.exp(z)
        return (
            stats.halfnorm(scale=2).logpdf(sigma)
            + z
            + sum(stats.norm(0, sigma).logpdf(v) for v in y)
        )

    def loss(p):
        z = p[0] + np.exp(p[1]) * nodes
        return -(weights @ log_joint(z)) - p[1]

    mean, log_sd = minimize(loss, np.zeros(2), method="BFGS").x
    search = pmcl.Search(steps=3000, draws=20, learning_rate=3e-2)
    stream = pmcl.fit_online(model, search=search, random_seed=0, progressbar=False)
    assert stream.problem.remainder is not None
    q = stream.update({"y": y}, progressbar=False).approximation()
    np.testing.assert_allclose((q.mean - mean) / np.exp(log_sd), 0, atol=0.03)
    np.testing.assert_allclose(q.log_sd, log_sd, atol=0.03)


@pytest.fixture(scope="module")
def heads():
    """A network with one hidden layer and a head for each of three tasks."""
    coords = {"row": range(1), "input": range(2), "unit": range(6), "head": range(3)}
    with pm.Model(coords=coords) as model:
        X = pm.Data("X", np.zeros((1, 2)), dims=("row", "input"))
        head = pm.Data("head_of_row", np.zeros(1, int), dims="row")
        W = pm.Normal("W", 0, 1, dims=("input", "unit"))
        b = pm.Normal("b", 0, 1, dims="unit")
        V = pm.Normal("V", 0, 1, dims=("unit", "head"))
        score = (pt.tanh(X @ W + b) @ V)[pt.arange(X.shape[0]), head]
        pm.Bernoulli("y", logit_p=score, observed=np.zeros(1, int), dims="row")
    return pmcl.fit_online(
        model,
        memory=pmcl.RandomCoreset(5, per_task=True),
        search=QUICK,
        precision="single",
        random_seed=0,
        progressbar=False,
    )


def test_heads_of_tasks_that_have_not_come_stay_at_the_prior(heads):
    stream = heads
    for task in range(2):
        data = logistic(60, task)
        data["y"] = data["y"] if task == 0 else 1 - data["y"]
        batch = {**data, "head_of_row": np.full(60, task)}
        stream = stream.update(batch, name=f"task {task}", progressbar=False)
    assert stream.problem.rows.local.layers == 2
    where = next(v for v in stream.compiled.values if v.variable == "V")
    for q in (stream.state.q, stream.approximation()):
        part = slice(where.start, where.start + where.size)
        mean = np.asarray(q.mean)[part].reshape(6, 3)
        sd = np.exp(np.asarray(q.log_sd))[part].reshape(6, 3)
        np.testing.assert_array_equal(mean[:, 2], 0)
        np.testing.assert_array_equal(sd[:, 2], 1)
        assert np.abs(mean[:, :2]).max() > 0.3
    # each task's stored rows alone, for its predictions; the two heads say opposite things
    memory = stream.memory
    assert list(np.unique(memory["batch"], return_counts=True)[1]) == [5, 5]
    new = logistic(200, 50)
    for task in range(2):
        y = new["y"] if task == 0 else 1 - new["y"]
        at = {"X": new["X"], "y": y, "head_of_row": np.full(200, task)}
        found = stream.log_predictive(at, task=f"task {task}").mean()
        assert float(found) > np.log(0.5)
    with pytest.raises(ValueError, match="task: expected the name of a batch"):
        stream.log_predictive(at, task="another")


@pytest.mark.parametrize("batch_size", [None, 7])
def test_what_is_new_in_a_batch_begins_as_in_the_first(heads, batch_size):
    problem, prior = heads.problem, heads.problem.prior
    search = pmcl.Search(steps=5, batch_size=batch_size)
    start = pmcl.MaximumLikelihoodStart(variance=1e-4)
    settings = heads.settings._replace(start=start, search=search)
    places = {v.variable: slice(v.start, v.start + v.size) for v in heads.compiled.values}

    def begun(known, head):
        data = {**logistic(60, 0), "head_of_row": np.full(60, head)}
        data["X"][:, 1] = 0.0 if head == 0 else data["X"][:, 1]  # a pixel that is black
        part = Stored(data, np.zeros(60), np.zeros(60, "U1"))
        batch = as_batch(problem.rows, part, np.ones(60))
        key = jax.random.key(head)
        return begin(problem, problem.rows, prior, batch, settings, known, key)

    with jax.enable_x64(False):
        first, _, steps = begun(None, 0)
        assert steps == 5  # those of the search for the maximum
        small = np.isclose(first.variance, 1e-4, rtol=1e-4)
        assert small[places["b"]].all()
        np.testing.assert_array_equal(small[places["W"]].reshape(2, 6).all(axis=1), [True, False])
        np.testing.assert_array_equal(small[places["V"]].reshape(6, 3).all(axis=0), [1, 0, 0])
        np.testing.assert_array_equal(first.mean[~small], prior.mean[~small])
        np.testing.assert_array_equal(first.log_sd[~small], prior.log_sd[~small])
        # in the next one the other pixel and the second head are new, and known is what is known;
        # what is the prior but for rounding is unknown
        known = MeanField(jnp.full_like(prior.mean, 0.5), jnp.full_like(prior.mean, -1.0))
        none = prior._replace(mean=prior.mean + 1e-6)
        known = MeanField(*(jnp.where(small, k, p) for k, p in zip(known, none, strict=True)))
        second, _, steps = begun(known, 1)
        assert steps == 0
        new = np.isclose(second.variance, 1e-4, rtol=1e-4)
        assert new[places["W"]].reshape(2, 6)[1].all()
        np.testing.assert_array_equal(new[places["V"]].reshape(6, 3).all(axis=0), [0, 1, 0])
        np.testing.assert_array_equal(second.mean[small], 0.5)
        np.testing.assert_array_equal(second.log_sd[~small & ~new], 0.0)
        np.testing.assert_array_equal(second.mean[~small & ~new], 0.0)


def test_unseen_heads_stay_where_they_are_whatever_is_stored_and_forgotten():
    """Where the prior is no round number, and what is known goes through natural parameters."""
    with pm.Model(coords={"row": range(1), "head": range(3)}) as model:
        x = pm.Data("x", np.zeros(1), dims="row")
        head = pm.Data("head_of_row", np.zeros(1, int), dims="row")
        V = pm.Normal("V", 0.3, 0.7, dims="head")
        pm.Bernoulli("y", logit_p=x * V[head], observed=np.zeros(1, int), dims="row")
    stream = pmcl.fit_online(
        model, memory=pmcl.ResidualMemory(5, draws=20), drift=pmcl.BayesianForgetting(0.2),
        search=pmcl.Search(steps=300, draws=4), precision="single", random_seed=0,
        progressbar=False,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for time in range(3):
        x = rng.normal(size=20)
        batch = {"x": x, "y": (x > 0).astype(int), "head_of_row": np.arange(20) % 2}
        stream = stream.update(batch, time=1.7 * time, progressbar=False)
    for q in (stream.state.q, stream.state.predictive):
        assert q.mean[0] > 0.6
        assert float(q.mean[2]) == pytest.approx(0.3, abs=1e-5)
        assert float(q.log_sd[2]) == pytest.approx(np.log(0.7), abs=1e-5)


@pytest.mark.parametrize("memory", [None, pmcl.RandomCoreset(3)])
def test_unseen_heads_stay_at_the_prior_where_other_priors_are_not_normal(memory, tmp_path):
    """The search for the prior of the one must not move the other, however early it ends."""
    with pm.Model(coords={"row": range(1), "head": range(3)}) as model:
        head = pm.Data("head_of_row", np.zeros(1, int), dims="row")
        V = pm.Normal("V", 0.3, 0.7, dims="head")
        pm.Normal("y", V[head], pm.HalfNormal("sigma"), observed=np.zeros(1), dims="row")
    stream = pmcl.fit_online(
        model, memory=memory, start=pmcl.ScatteredStart(means=1 - 1e-6),
        search=pmcl.Search(steps=300, learning_rate=1e-2), precision="single", random_seed=0,
        progressbar=False,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for task in (0, 1):
        batch = {"y": rng.normal(2 - task, 0.5, 200), "head_of_row": np.full(200, task)}
        stream = stream.update(batch, progressbar=False)
        for q in (stream.state.q, stream.state.predictive):
            V = stream.compiled.unravel(q.mean)["V"], stream.compiled.unravel(q.log_sd)["V"]
            np.testing.assert_allclose(V[0][task + 1 :], 0.3, rtol=1e-6)
            np.testing.assert_allclose(V[1][task + 1 :], np.log(0.7), rtol=1e-6)
            assert V[1][task] < np.log(0.1)
    path = tmp_path / "stream.zarr.zip"
    pmcl.save(stream, path)
    loaded = pmcl.load(path, model)
    np.testing.assert_array_equal(loaded.problem.normal, stream.problem.normal)
    assert sorted(loaded.problem.normal.tolist()) == [False, True, True, True]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: pmcl.Start(scale=0.0), "Start: expected scale, a number above 0, got 0.0"),
        (lambda: pmcl.ScatteredStart(means=1.0), "expected means, a number of at least 0 and bel"),
        (lambda: pmcl.MaximumLikelihoodStart(variance=0.0), "expected variance, a number above 0"),
        (lambda: pmcl.ResidualMemory(5, draws=1), "expected draws, at least 2, got 1"),
    ],
)
def test_settings_that_cannot_be(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_a_batch_that_cannot_be_learned_is_said_to_be():
    with pm.Model(coords={"row": range(1)}) as model:
        pm.Normal("y", pm.Normal("mu") * 1e300, 1e-300, observed=np.zeros(1), dims="row")
    stream = pmcl.fit_online(model, search=pmcl.Search(steps=20), random_seed=0, progressbar=False)
    with pytest.warns(UserWarning, match=r"Update '0': 20 of 20 steps were left out"):
        stream.update({"y": np.ones(3)}, progressbar=False)


def counted(trials: int, successes: int) -> dict[str, np.ndarray]:
    return {"trials": np.full(20, trials), "y": np.full(20, successes)}


@pytest.fixture(scope="module")
def coin():
    with pm.Model(coords={"row": range(1)}) as model:
        trials = pm.Data("trials", np.ones(1, int), dims="row")
        pm.Binomial(
            "y", trials, logit_p=pm.Normal("a", 0, 2), observed=np.zeros(1, int), dims="row"
        )
    return pmcl.fit_online(model, random_seed=0, progressbar=False)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("trials", [10**2, 10**5, 10**9])
def test_a_search_arrives_however_much_a_batch_says(coin, trials):
    """Adam, which does not forget how steep it was where it began, needs several turns."""
    n, k = 20 * trials, 20 * (trials // 3)
    a = special.logit(k / n) + 8 * np.sqrt(n / (k * (n - k))) * np.linspace(-1, 1, 2001)
    log_p = 20 * stats.binom.logpmf(trials // 3, trials, special.expit(a))
    log_p = log_p + stats.norm.logpdf(a, 0, 2)
    p = np.exp(log_p - log_p.max())
    mean = np.average(a, weights=p)
    sd = np.sqrt(np.average((a - mean) ** 2, weights=p))
    stream = coin.update(counted(trials, trials // 3), progressbar=False)
    q, info = stream.approximation(), stream.records[-1].info
    assert float(q.mean[0]) == pytest.approx(mean, abs=0.05 * sd)
    assert float(np.exp(q.log_sd[0])) == pytest.approx(sd, rel=0.03)
    evidence = log_p.max() + np.log(p.sum() * (a[1] - a[0]))
    assert info.lower_bound == pytest.approx(evidence, abs=0.3)
    assert info.log_evidence == pytest.approx(evidence, abs=0.1)
    assert info.left < 0.1


def test_a_search_that_does_not_arrive_is_said_to_be(coin, tmp_path):
    short = with_settings(coin, search=pmcl.Search(steps=20))
    with pytest.warns(UserWarning, match="ended after 100 steps before it arrived"):
        stream = short.update(counted(10**6, 10**5), progressbar=False)
    assert stream.history["left"][0] > 1
    pmcl.save(stream, tmp_path / "stream.zarr.zip")
    loaded = pmcl.load(tmp_path / "stream.zarr.zip", coin.compiled.model)
    assert loaded.records[0].info.left == stream.records[0].info.left


def test_what_a_search_may_leave(coin):
    """Of parameters that mean something a tenth of a nat, however many; of weights 0.001 each."""
    with pm.Model(coords={"row": range(1)}) as network:
        X = pm.Data("X", np.zeros((1, 9)), dims=("row", "input"))
        W, V = pm.Normal("W", 0, 1, shape=(9, 30)), pm.Normal("V", 0, 1, shape=30)
        pm.Normal("y", pm.math.tanh(X @ W) @ V, 1, observed=np.zeros(1), dims="row")
    with pm.Model(coords={"row": range(1)}) as many:
        X = pm.Data("X", np.zeros((1, 300)), dims=("row", "input"))
        w = pm.Normal("w", 0, 1, shape=300)
        pm.Bernoulli("y", logit_p=X @ w, observed=np.zeros(1, int), dims="row")
    left = [pmcl.fit_online(m, progressbar=False).problem.enough for m in (network, many)]
    assert left == [pytest.approx(0.3), 0.1] and coin.problem.enough == 0.1


@pytest.mark.parametrize("start", [pmcl.ScatteredStart(), pmcl.MaximumLikelihoodStart()])
def test_starts(heads, start):
    data = {**logistic(100, 0), "head_of_row": np.zeros(100, int)}
    rows, prior = heads.problem.rows, heads.problem.prior
    with jax.enable_x64(False):
        part = Stored(data, np.zeros(100), np.zeros(100, "U1"))
        batch = as_batch(rows, part, np.ones(100))
        search = pmcl.Search(steps=2000, learning_rate=1e-2)
        q = start.first(rows, prior, batch, search, jax.random.key(0))
        if isinstance(start, pmcl.ScatteredStart):  # grs.txt, appendix I
            assert np.asarray(q.mean).std() == pytest.approx(0.999**0.5, rel=0.3)
            np.testing.assert_allclose(q.variance, 0.001, rtol=0.02)
        else:
            np.testing.assert_allclose(q.variance, 1e-6, rtol=1e-4)
            better = rows(q.mean, batch.data)[:100].mean()
            assert float(better) > -0.62  # the true weights' is about -0.47


def test_streams_of_a_model_share_its_narrower_rows(curve):
    rows = curve.problem.rows
    other, shapes = replace(rows), tuple(value.shape for value in rows.compiled.values)
    assert other is not rows
    narrow = rows.narrow(shapes)
    assert other.narrow(shapes) is narrow
    assert narrow.compiled.model is None  # what is kept does not keep the model alive


@pytest.mark.parametrize(
    ("start", "sd"),
    [
        (pmcl.ScatteredStart(means=1 - 1e-4, narrow=True), None),
        (pmcl.MaximumLikelihoodStart(variance=1e-4, narrow=True), 1e-2),
    ],
)
def test_a_search_that_begins_narrow_again_ends_where_it_should(curve, start, sd):
    """But for what a batch says nothing of: that stays as wide as it was."""
    again, wide = with_settings(curve, start=start), with_settings(curve)
    first, second = logistic(30, 0), logistic(30, 1)
    again, wide = (s.update(first, progressbar=False) for s in (again, wide))
    second["X"][:, 1] = 0.0
    arrived = Stored(second, np.ones(30), np.full(30, "1"))
    with jax.enable_x64(True):
        batch = as_batch(again.problem.rows, arrived, np.ones(30))
        q, prior = again.state.q, again.problem.prior
        begun = begin(
            again.problem, again.problem.rows, q, batch, again.settings, q, jax.random.key(0)
        ).q
    np.testing.assert_allclose(begun.mean, q.mean)
    narrow = np.log(sd) if sd else prior.log_sd[0] + np.log(1e-2)  # else a part of the prior's
    np.testing.assert_allclose(begun.log_sd[0], narrow, atol=1e-5)
    assert float(begun.log_sd[1]) == float(q.log_sd[1])
    found = [s.update(second, progressbar=False).approximation() for s in (again, wide)]
    sd = np.exp(found[1].log_sd)
    np.testing.assert_allclose((found[0].mean - found[1].mean) / sd, 0, atol=0.1)
    np.testing.assert_allclose(found[0].log_sd, found[1].log_sd, atol=0.05)


@pytest.mark.parametrize("method", [None, pmcl.ElasticWeightConsolidation(1.0)])
def test_steps_of_the_start_count(curve, method):
    settings = {"search": FEW, "method": method, "start": pmcl.MaximumLikelihoodStart()}
    now = with_settings(curve, **settings)
    for i in range(2):
        now = now.update(logistic(40, i), progressbar=False)
    assert now.history["steps"].values.tolist() == [40, 20]


def test_memories_choose_what_they_say():
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(size=(50, 2)), [[30.0, 0.0], [0.0, -30.0]]])
    among = Candidates(points, 10, 10, None)
    kept = pmcl.KCenterCoreset(4).keep(among, rng)
    assert kept.sum() == 4
    assert kept[-2:].all()
    # a reservoir: after many small batches every row has had the same chance
    rule, counts = pmcl.RandomCoreset(5), np.zeros(40)
    for _ in range(3000):
        held = np.zeros(0, int)
        for first in range(0, 40, 4):
            everything = np.concatenate([held, np.arange(first, first + 4)])
            among = Candidates(np.zeros((len(everything), 1)), len(held), first, None)
            held = everything[rule.keep(among, rng)]
        counts[held] += 1
    assert counts.sum() == 5 * 3000
    assert np.abs(counts / 3000 - 5 / 40).max() < 5 * np.sqrt(0.125 * 0.875 / 3000)
    with pytest.raises(ValueError, match="RandomCoreset: expected a capacity of at least 1"):
        pmcl.RandomCoreset(0)


def test_a_saved_stream_goes_on_as_it_would_have(curve, tmp_path):
    stream = with_settings(
        curve, memory=pmcl.ResidualMemory(10, draws=20), drift=pmcl.Wiener(0.1, scale=2.0)
    )
    for i in range(2):
        stream = stream.update(logistic(20, i), time=2.0 * i, name=f"b{i}", progressbar=False)
    path = tmp_path / "stream.zarr.zip"
    pmcl.save(stream, path)
    read = pmcl.load(path, logistic_model())
    assert read.settings == stream.settings
    assert read.state.seen == stream.state.seen == 40
    xr.testing.assert_identical(read.memory, stream.memory)
    xr.testing.assert_identical(read.history, stream.history)
    new = logistic(20, 7)
    after, there = (s.update(new, time=5.0, progressbar=False) for s in (stream, read))
    np.testing.assert_allclose(there.state.q.mean, after.state.q.mean, rtol=1e-6)
    xr.testing.assert_equal(
        read.sample(50)["posterior"].to_dataset(), stream.sample(50)["posterior"].to_dataset()
    )
    pmcl.save(stream, path, include_memory=False)
    without = pmcl.load(path, logistic_model()).state
    assert len(without.memory) == 0
    assert without.seen == 30  # what is known of the stored rows went with them
    np.testing.assert_array_equal(without.predictive.mean, stream.state.q.mean)
    with pytest.raises(pmcl.StateError, match="another model"):
        pmcl.load(path, linear_model())
    with logistic_model() as other:
        pm.Normal("extra")
    with pytest.raises(pmcl.StateError, match="another model; free differ"):
        pmcl.load(path, other)


@pytest.mark.parametrize("method", [pmcl.ElasticWeightConsolidation(1.0), pmcl.Naive()])
def test_a_baseline_has_no_memory_to_leave_out(curve, tmp_path, method):
    stream = with_settings(curve, method=method, search=FEW)
    stream = stream.update(logistic(30, 0), progressbar=False)
    pmcl.save(stream, path := tmp_path / "point.zarr.zip", include_memory=False)
    again = pmcl.load(path, logistic_model())
    np.testing.assert_array_equal(again.state.predictive.mean, stream.state.predictive.mean)
    np.testing.assert_array_equal(again.state.predictive.log_sd, stream.state.predictive.log_sd)


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "single", "memory": pmcl.RandomCoreset(2, per_task=True)},
        {"method": pmcl.ElasticWeightConsolidation(2.0, decay=1.0)},
        {"power": 2.5, "strength": 3.0, "start": pmcl.ScatteredStart(narrow=True)},
    ],
)
def test_streams_of_every_kind_are_read_as_they_were_saved(settings, tmp_path):
    search = pmcl.Search(steps=50, learning_rate=1e-2)
    stream = pmcl.fit_online(
        linear_model(), search=search, random_seed=0, progressbar=False, **settings
    )
    path = tmp_path / "stream.zarr.zip"
    for i in range(3):
        pmcl.save(stream, path)
        read = pmcl.load(path, linear_model())
        assert read.settings == stream.settings
        if i:
            xr.testing.assert_identical(read.history, stream.history)
        for name in ("q", "predictive"):
            for a, b in zip(getattr(read.state, name), getattr(stream.state, name), strict=True):
                np.testing.assert_array_equal(a, b)
                assert a.dtype == b.dtype
        stream = stream.update(linear(20, i), progressbar=False)
    if "method" in settings:
        assert np.isnan(stream.history["khat"]).all()
        # one point, for any task
        q = stream.approximation(task="1")
        np.testing.assert_array_equal(q.mean, stream.approximation().mean)
        assert float(np.exp(q.log_sd).max()) < 1e-5


def test_a_prior_far_from_the_origin_is_found():
    with pm.Model(coords={"row": range(1)}) as model:
        mu = pm.Normal("mu", 50_000, 10_000)
        pm.Normal("y", mu, pm.HalfNormal("sigma", 2.0), observed=np.zeros(1), dims="row")
    stream = pmcl.fit_online(
        model, search=pmcl.Search(epochs=3, batch_size=5), random_seed=0, progressbar=False
    )
    prior = stream.problem.prior
    assert stream.problem.remainder is not None
    assert float(prior.mean[0]) == pytest.approx(50_000)
    assert float(np.exp(prior.log_sd[0])) == pytest.approx(10_000)
    # sigma's: where both derivatives of the bound vanish, E[d log p / dz] and E[-d2 log p] = 1 / v
    z = np.log(2.0) + np.linspace(-12, 3, 4001)
    log_density = stats.halfnorm(scale=2).logpdf(np.exp(z)) + z
    q = stats.norm(float(prior.mean[1]), float(np.exp(prior.log_sd[1]))).pdf(z)
    q = q / q.sum()
    slope = np.gradient(log_density, z)
    assert q @ slope == pytest.approx(0, abs=0.05)
    curved = -(q @ np.gradient(slope, z))
    assert curved == pytest.approx(np.exp(-2 * float(prior.log_sd[1])), rel=0.1)


def test_an_exact_stream_searches_where_a_batch_asks_for_it():
    """A censored likelihood of which the first batch has no censored value."""
    with pm.Model(coords={"row": range(1)}) as model:
        mu = pm.Normal("mu", 0, 2)
        normal = pm.Normal.dist(mu, 1.0)
        pm.Censored("y", normal, lower=None, upper=1.0, observed=np.zeros(1), dims="row")
    stream = pmcl.fit_online(model, search=QUICK, random_seed=0, progressbar=False)
    stream = stream.update({"y": np.array([0.3, -0.2])}, progressbar=False)
    assert stream.history["exact"].values.tolist() == [True]
    stream = stream.update({"y": np.array([1.0, 1.0])}, progressbar=False)
    stream = stream.update({"y": np.array([0.5, 0.1])}, progressbar=False)
    assert stream.history["exact"].values.tolist() == [True, False, False]


def two_outcomes():
    """Two outcomes of every row."""
    with pm.Model(coords={"row": range(2)}) as model:
        x = pm.Data("x", np.zeros(2), dims="row")
        mean = pm.Normal("mean", 0, 2)
        slope = pm.Normal("slope", 0, 1)
        pm.Normal("weight", mean, 1.0, observed=np.zeros(2), dims="row")
        pm.Normal("height", mean + slope * x, 0.5, observed=np.zeros(2), dims="row")
    return model


def with_missing(n: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    data = {"x": rng.normal(size=n), "weight": rng.normal(1, 1, n), "height": rng.normal(1, 1, n)}
    data["height"][rng.random(n) < 0.4] = np.nan
    data["weight"][rng.random(n) < 0.2] = np.nan
    return data


def conjugate(*batches: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (mean, slope) given what is there."""
    precision, shift = np.diag([1 / 4, 1.0]), np.zeros(2)
    for b in batches:
        for name, sd, slope in (("weight", 1.0, 0.0), ("height", 0.5, 1.0)):
            there = np.isfinite(b[name])
            design = np.stack([np.ones(there.sum()), slope * b["x"][there]], axis=1)
            precision = precision + design.T @ design / sd**2
            shift = shift + design.T @ b[name][there] / sd**2
    covariance = np.linalg.inv(precision)
    return covariance @ shift, covariance


@pytest.mark.parametrize(
    ("family", "rule"),
    [
        ("mean_field", pmcl.RandomCoreset(capacity=8)),
        ("full", pmcl.RandomCoreset(capacity=8)),
        ("full", pmcl.ResidualMemory(capacity=8)),
    ],
)
def test_a_value_that_is_missing_says_nothing(family, rule, tmp_path):
    """Against the closed form, with stored rows of batches with gaps and without."""
    whole = {k: np.nan_to_num(v) for k, v in with_missing(5, 9).items()}
    batches = [with_missing(7, 1), whole, with_missing(6, 2)]
    stream = pmcl.fit_online(
        two_outcomes(), family=family, memory=rule, random_seed=0, progressbar=False
    )
    for batch in batches:
        stream = stream.update(batch, progressbar=False)
    mean, covariance = conjugate(*batches)
    q = stream.approximation()
    # a mean field forgets from batch to batch how entries go together
    np.testing.assert_allclose(q.mean, mean, atol=1e-5 if family == "full" else 0.02)
    if family == "full":
        np.testing.assert_allclose(q.covariance, covariance, atol=1e-5)
    # the rows that are kept have their gaps, in a file, too
    pmcl.save(stream, tmp_path / "stream.zarr.zip")
    again = pmcl.load(tmp_path / "stream.zarr.zip", two_outcomes())
    assert stream.memory["height"].isnull().any() and again.memory.identical(stream.memory)
    # and of a new row the density is that of what is there
    test = {"x": np.array([0.3, 0.3]), "weight": [0.2, np.nan], "height": [np.nan, np.nan]}
    found = stream.log_predictive(test, draws=20_000, random_seed=1)
    sd = np.sqrt(covariance[0, 0] + 1.0)
    np.testing.assert_allclose(found[0], stats.norm.logpdf(0.2, mean[0], sd), atol=0.01)
    assert found[1] == 0


def test_shares_of_which_some_are_missing_are_refused():
    with pm.Model(coords={"row": range(2), "part": range(2)}) as model:
        mean = pm.Normal("mean", 0, 1, dims="part")
        pm.MvNormal("y", mean, np.eye(2), observed=np.zeros((2, 2)), dims=("row", "part"))
    stream = pmcl.fit_online(model, search=QUICK, random_seed=0, progressbar=False)
    with pytest.raises(pmcl.DataError, match="'y': expected values that are all there or all miss"):
        stream.update({"y": np.array([[0.0, np.nan], [1.0, 1.0]])}, progressbar=False)


def test_a_column_of_outcomes_is_read_as_outcomes(line):
    """`frame[["y"]].values` has a number for each row; ten datasets of one row are no stream."""
    data = linear(4, 0)
    column = line.update({**data, "y": data["y"][:, None]}, progressbar=False)
    vector = line.update(data, progressbar=False)
    np.testing.assert_array_equal(column.approximation().mean, vector.approximation().mean)
    with pytest.raises(pmcl.DataError, match="got 4 datasets; a stream has one posterior"):
        line.update({"X": data["X"][:, None], "y": data["y"][:, None]}, progressbar=False)


def test_a_column_of_a_covariate_is_read_as_one(heads):
    X, head = logistic(4, 0)["X"], np.zeros((4, 1), int)
    column = heads.predict({"X": X, "head_of_row": head}, draws=3, random_seed=0)
    vector = heads.predict({"X": X, "head_of_row": head[:, 0]}, draws=3, random_seed=0)
    xr.testing.assert_equal(column, vector)


def test_what_does_not_fit_is_refused(line, curve):
    data = linear(4, 0)
    with pytest.raises(pmcl.DataError, match="'X'"):
        line.update({"y": data["y"]})
    several = {k: np.stack([v, v]) for k, v in data.items()}
    with pytest.raises(pmcl.DataError, match="got 2 datasets; a stream has one posterior"):
        line.update(several)
    with pytest.raises(ValueError, match="new_covariates: expected"):
        line.predict()
    with pytest.raises(ValueError, match="precision: expected 'double' or 'single'"):
        pmcl.fit_online(linear_model(), precision="half")
    with pm.Model() as scalar:
        pm.Normal("y", pm.Normal("mu"), 1, observed=0.0)
    with pytest.raises(ValueError, match="expected 'y' to have a dim of rows"):
        pmcl.fit_online(scalar)
    with pm.Model(coords={"row": range(4)}) as series:
        pm.AR("y", [0.5], sigma=1.0, observed=np.zeros(4), dims="row")
        pm.Normal("mu")
    with pytest.raises(UnsupportedModelError, match="row by row"):
        pmcl.fit_online(series)
    for make, message in [
        (lambda: pmcl.Search(steps=0), "Search: expected steps of at least 1"),
        (lambda: pmcl.Search(learning_rate=0.0), "Search: expected a learning_rate above 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
    with pm.Model(coords={"row": range(1), "predictor": range(3)}) as centred:
        X = pm.Data("X", np.zeros((1, 3)), dims=("row", "predictor"))
        mean = (X - X.mean(axis=0)) @ pm.Normal("w", dims="predictor")
        pm.Normal("y", mean, 1, observed=np.zeros(1), dims="row")
    with pytest.raises(UnsupportedModelError, match="'X': expected that a row's likelihood"):
        pmcl.fit_online(centred, random_seed=0, progressbar=False).update(data)
    with pm.Model(coords={"row": range(4)}) as of_arrays:
        mean = pm.Normal("slope") * np.array([1.0, 0.5, -1.0, 2.0])
        pm.Normal("y", mean, 1, observed=np.zeros(4), dims="row")
    beside = r"of 5 rows along 'row' .*the array \[1, 0.5, -1, ...\] beside 4 values of 'y'"
    with pytest.raises(UnsupportedModelError, match=beside):
        pmcl.fit_online(of_arrays, random_seed=0, progressbar=False)
    with pm.Model(coords={"row": range(1)}) as of_prior:
        mu = pm.Normal("mu", pm.Data("level", 0.0))
        pm.Normal("y", mu, 1, observed=np.zeros(1), dims="row")
    with pytest.raises(ValueError, match="covariates: .* got .'level'., on which the prior"):
        pmcl.fit_online(of_prior, covariates=["level"])
    with pm.Model(coords={"row": range(1)}) as shared:
        level = pm.Data("level", 0.0)
        pm.Normal("y", pm.Normal("mu") + level, 1, observed=np.zeros(1), dims="row")
    stream = pmcl.fit_online(shared, memory=pmcl.RandomCoreset(3), covariates=["level"])
    with pytest.raises(pmcl.DataError, match="'level': expected a value for each row"):
        stream.update({"y": np.zeros(3), "level": 1.0})


@pytest.mark.parametrize(
    "method",
    [
        pmcl.OnlineLaplace(strength=0.5),
        pmcl.ElasticWeightConsolidation(strength=2.0, decay=1.0),
        pmcl.SynapticIntelligence(strength=3.0, damping=0.01),
    ],
)
def test_points_are_where_likelihood_and_penalty_balance(line, method):
    """Linear regression, whose maximum under any quadratic penalty is known."""
    data = [linear(600, 31), linear(400, 32)]
    search = pmcl.Search(steps=3000, learning_rate=2e-3)
    stream = with_settings(line, method=method, search=search)
    laplace = isinstance(method, pmcl.OnlineLaplace)
    precision, shift = np.full(3, float(laplace)), np.zeros(3)  # Laplace begins with the prior
    for batch in data:
        before = np.asarray(stream.approximation().mean)
        stream = stream.update(batch, progressbar=False)
        X, y = batch["X"], batch["y"]
        expected = np.linalg.solve(
            np.diag(precision) + X.T @ X / SIGMA**2, shift + X.T @ y / SIGMA**2
        )
        found = np.asarray(stream.approximation().mean)
        np.testing.assert_allclose(found, expected, atol=1e-3)
        factor = stream.state.q.factor
        information = (X**2).sum(axis=0) / SIGMA**2
        if laplace:
            new = np.asarray(factor.precision) - precision
            np.testing.assert_allclose(new, 0.5 * information, rtol=0.25)  # of 600 drawn rows
            np.testing.assert_allclose(stream.state.q.mean, found, rtol=1e-6)
        elif isinstance(method, pmcl.ElasticWeightConsolidation):
            new = np.asarray(factor.precision) - precision
            np.testing.assert_allclose(new, 2.0 * information, rtol=0.25)
            # each task's quadratic is around its own optimum
            np.testing.assert_allclose(np.asarray(factor.shift) - shift, new * found, rtol=1e-5)
        else:
            new = np.asarray(factor.precision) - precision
            share = new / (2 * 3.0) * ((found - before) ** 2 + 0.01)
            rise = [stats.norm(X @ w, SIGMA).logpdf(y).sum() for w in (before, found)]
            if before.any():
                # the likelihood cannot rise in every entry: shares below nothing do not count
                assert share.sum() > 0.9 * (rise[1] - rise[0])
            else:
                np.testing.assert_allclose(share.sum(), rise[1] - rise[0], rtol=0.05)
        precision, shift = np.asarray(factor.precision), np.asarray(factor.shift)
    with pytest.raises(ValueError, match="method: expected one of .* and no memory"):
        pmcl.fit_online(linear_model(), method=method, memory=pmcl.RandomCoreset(3))
    with pytest.raises(ValueError, match="method: expected one of"):
        pmcl.fit_online(linear_model(), method=pmcl.Replay(3))


def test_one_row_that_is_not_gaussian_is_seen_wherever_it_is():
    with pm.Model(coords={"row": range(1)}) as model:
        mu = pm.Normal("mu", 0, 2)
        pm.Censored(
            "y", pm.Normal.dist(mu, 1), lower=None, upper=1.0, observed=np.zeros(1), dims="row"
        )
    search = pmcl.Search(steps=10, draws=2)
    stream = pmcl.fit_online(model, search=search, random_seed=0, progressbar=False)
    y = np.linspace(-1.0, 0.9, 150)
    assert bool(stream.update({"y": y}, progressbar=False).history["exact"][0])
    y[-1] = 1.0
    assert not bool(stream.update({"y": y}, progressbar=False).history["exact"][0])


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"memory": 200}, TypeError, r"memory: expected None or such as pmcl.KCenterCoreset"),
        ({"drift": 0.1}, TypeError, r"drift: expected None or such as pmcl.Static\(\), got 0.1"),
        ({"search": "fast"}, TypeError, "search: expected None or such as pmcl.Search"),
        ({"start": 0}, TypeError, "start: expected None or such as pmcl.Start"),
        ({"encoder": max}, TypeError, "encoder: expected None or such as pmcl.Encoder"),
        (
            {"method": pmcl.Naive(), "drift": pmcl.Wiener(0.1)},
            ValueError,
            "drift: with a method that follows one value",
        ),
        ({"power": 0.0}, ValueError, "power: expected a number above 0, got 0.0"),
        ({"power": "cold"}, ValueError, "power: expected a number above 0, got 'cold'"),
        ({"strength": -1.0}, ValueError, "strength: expected a number of at least 0, got -1.0"),
        (
            {"strength": 2.0, "memory": pmcl.RandomCoreset(3)},
            ValueError,
            "strength: with a memory expected 1, got 2.0",
        ),
        (
            {"method": pmcl.Naive(), "strength": 2.0},
            ValueError,
            "strength: with a method that follows one value",
        ),
        (
            {"method": pmcl.Naive(), "power": 2.0},
            ValueError,
            "power: with a method that follows one value",
        ),
    ],
)
def test_settings_of_another_kind_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        pmcl.fit_online(linear_model(), progressbar=False, **settings)


@pytest.mark.parametrize(
    "time", ["monday", np.datetime64("2026-01-01"), np.timedelta64(3, "D"), [1.0]]
)
def test_a_time_is_a_number(line, time):
    with pytest.raises(TypeError, match="time: expected a number in the drift's units"):
        line.update(linear(5, 0), time=time)


@pytest.mark.parametrize("depends", [False, True])
def test_counts_that_keep_arriving(depends):
    """Nothing has a derivative by the data; rows that depend on one another are refused still."""
    with pm.Model(coords={"row": range(3)}) as model:
        rate = pm.Gamma("rate", 2, 1)
        n = pm.Data("n", np.ones(3, int), dims="row")
        mean = rate * (n.sum() if depends else n)
        pm.Poisson("y", mean, observed=np.zeros(3, int), dims="row")
    stream = pmcl.fit_online(model, search=pmcl.Search(steps=400), random_seed=0, progressbar=False)
    y = np.random.default_rng(0).poisson(4 * 2, 50)
    batch = {"y": y, "n": np.where(np.arange(50) % 2, 1, 3)}
    if depends:
        with pytest.raises(pmcl.UnsupportedModelError, match="depends on that row alone"):
            stream.update(batch, progressbar=False)
        return
    draws = stream.update(batch, progressbar=False).sample(4000, random_seed=0)["posterior"]["rate"]
    exact = (2 + y.sum()) / (1 + 100)
    assert float(draws.mean()) == pytest.approx(exact, rel=0.03)


def test_a_stream_that_was_lost_before_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="in update 1, which all later rest on .k-hat 2.82"):
        warn_of(-np.inf, [np.nan, 2.82, 0.1])
    with pytest.warns(UserWarning, match="in the last update .k-hat 0.80"):
        warn_of(0.8, [2.82])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of(0.6, [np.nan, 0.9])
