"""Where the covariates of simulations come from, on both backends."""

from functools import lru_cache

import jax
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats

from pmcl.compile import (
    CompiledModel,
    Simulator,
    compile_model,
    make_simulator,
    prefetched,
    read_covariates,
)
from pmcl.compile.covariates import Source

DRAWS = 2000
TINY = 1e-4  # at fixed seeds
BACKENDS = ["jax", "pytensor"]
GRID = np.arange(20.0)
TABLE = np.stack([GRID, -GRID], axis=1)


@lru_cache
def regression_model() -> CompiledModel:
    with pm.Model(coords={"obs": range(6), "predictor": ["a", "b"]}) as model:
        x = pm.Data("X", np.zeros((6, 2)), dims=("obs", "predictor"))
        t = pm.Data("t", np.zeros(6), dims="obs")
        beta = pm.Normal("beta", dims="predictor")
        pm.Normal("y", x @ beta + t, 0.1, observed=np.zeros(6), dims="obs")
    return compile_model(model, covariates=["X", "t"])


def regression(sources: dict[str, Source], backend: str) -> Simulator:
    compiled = regression_model()
    covariates = read_covariates(sources, compiled.covariates)
    return make_simulator(compiled, covariates, backend=backend)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
def test_covariates_from_distributions_of_an_entry_and_of_a_row(backend: str) -> None:
    cov = np.array([[2.0, 0.9], [0.9, 1.0]])
    rows = pm.MvNormal.dist(np.array([1.0, -1.0]), cov)
    simulator = regression({"X": rows, "t": pm.Uniform.dist(2, 3)}, backend)
    z, data = simulator.simulate(DRAWS, random_seed=0)
    assert data["X"].shape == (DRAWS, 6, 2) and data["t"].shape == (DRAWS, 6)
    flat = data["X"].reshape(-1, 2)
    whitened = (flat - [1.0, -1.0]) @ np.linalg.inv(np.linalg.cholesky(cov)).T
    for column in (*whitened.T, (whitened[:, 0] + whitened[:, 1]) / np.sqrt(2)):
        assert stats.kstest(column, "norm").pvalue > TINY
    assert stats.kstest(data["t"].ravel(), "uniform", (2, 1)).pvalue > TINY
    residuals = data["y"] - np.einsum("nij,nj->ni", data["X"], z) - data["t"]
    assert stats.kstest(residuals.ravel() / 0.1, "norm").pvalue > TINY
    assert "X: distribution, t: distribution" in repr(simulator)


def from_tables(sources: dict[str, Source], backend: str) -> dict[str, np.ndarray]:
    """Draw tables for 300 datasets as one of the backends does."""
    covariates = read_covariates(sources, regression_model().covariates)
    if backend == "jax":
        keys = jax.random.split(jax.random.key(0), 300)
        return {k: np.asarray(v) for k, v in jax.vmap(covariates.tables)(keys).items()}
    rng = np.random.default_rng(0)
    drawn = [covariates.host_tables(rng) for _ in range(300)]
    return {k: np.stack([d[k] for d in drawn]) for k in sources}


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_tables_of_one_length_are_resampled_together(backend: str) -> None:
    data = from_tables({"X": TABLE, "t": 100 * GRID}, backend)
    np.testing.assert_array_equal(data["X"][..., 0], -data["X"][..., 1])
    np.testing.assert_array_equal(data["t"], 100 * data["X"][..., 0])
    counts = np.bincount(data["t"].astype(int).ravel() // 100, minlength=20)
    assert stats.chisquare(counts).pvalue > TINY


@pytest.mark.parametrize("backend", BACKENDS)
def test_whole_datasets_stay_whole(backend: str) -> None:
    datasets = np.arange(7 * 6 * 2.0).reshape(7, 6, 2)
    labelled = xr.DataArray(
        datasets.transpose(2, 0, 1) * 3, dims=("predictor", "dataset", "obs"), name="X"
    )
    data = from_tables({"X": labelled, "t": datasets[..., 0]}, backend)
    index = (data["t"][:, 0] / 12).astype(int)
    np.testing.assert_array_equal(data["t"], datasets[index, :, 0])
    np.testing.assert_array_equal(data["X"], 3 * datasets[index])
    assert stats.chisquare(np.bincount(index, minlength=7)).pvalue > TINY


def test_an_xarray_dataset_and_a_function_of_a_length() -> None:
    covariates = read_covariates(
        xr.Dataset({"X": (("row", "predictor"), TABLE), "t": ("row", GRID)}),
        regression_model().covariates,
    )
    drawn = covariates.host_tables(np.random.default_rng(0))
    np.testing.assert_array_equal(drawn["X"][:, 0], drawn["t"])

    lengths = []

    def increasing(rng: np.random.Generator, n: int) -> np.ndarray:
        lengths.append(n)
        return np.sort(rng.random(n))

    simulator = regression({"X": TABLE, "t": increasing}, "jax")
    _, data = simulator.simulate(50, random_seed=0)
    assert set(lengths) == {6}
    assert np.all(np.diff(data["t"]) > 0) and len(np.unique(data["t"])) == 300
    assert {tuple(row) for row in data["X"].reshape(-1, 2)} <= {tuple(row) for row in TABLE}
    assert "X: rows of a table of 20, t: function (host)" in repr(simulator)


NORMAL = pm.Normal.dist(0, 1)


@pytest.mark.parametrize(
    ("sources", "error", "message"),
    [
        (None, ValueError, r"\['X', 't'\], got \[\] \(missing: \['X', 't'\], unknown: \[\]\)"),
        ({"X": NORMAL}, ValueError, r"missing: \['t'\], unknown: \[\]"),
        ({"X": NORMAL, "t": NORMAL, "w": NORMAL}, ValueError, r"missing: \[\], unknown: \['w'\]"),
        (
            {"X": pm.Normal.dist(0, 1, shape=3), "t": NORMAL},
            ValueError,
            r"\['X'\]: .*one row \(shape \(2,\)\), got draws of shape \(3,\)",
        ),
        (
            {"X": np.zeros((9, 3)), "t": NORMAL},
            ValueError,
            r"\['X'\]: .*\(rows, 2\) or whole datasets of shape \(datasets, 6, 2\), got \(9, 3\)",
        ),
        ({"X": np.zeros(9), "t": NORMAL}, ValueError, r"\['X'\]: .*got \(9,\)"),
        ({"X": np.full((9, 2), np.nan), "t": NORMAL}, ValueError, r"\['X'\]: .*18 that are not"),
        ({"X": np.zeros((0, 2)), "t": NORMAL}, ValueError, r"\['X'\]: .*at least one row"),
        ({"X": "age", "t": NORMAL}, TypeError, r"\['X'\]: expected a PyMC distribution, an array"),
        ({"X": NORMAL + 1, "t": NORMAL}, TypeError, r"\['X'\]: expected an unnamed PyMC dist"),
    ],
)
def test_wrong_covariates_are_named(
    sources: dict | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match="covariates.*" + message):
        read_covariates(sources, regression_model().covariates)


def test_a_function_of_the_wrong_shape_is_named() -> None:
    with pytest.raises(ValueError, match=r"'t'.*length 6; expected .*\(6,\), got \(6, 1\)"):
        regression({"X": TABLE, "t": lambda rng, n: rng.random((n, 1))}, "pytensor").simulate(
            1, random_seed=0
        )


def test_integer_covariates_stay_integers() -> None:
    with pm.Model() as model:
        group = pm.Data("group", np.zeros(5, dtype=int))
        size = pm.Data("size", 1.0)
        effect = pm.Normal("effect", shape=3)
        pm.Normal("y", effect[group] * size, 0.1, observed=np.zeros(5))
    compiled = compile_model(model, covariates=["group", "size"])
    sources = {"group": pm.Categorical.dist(np.ones(3) / 3), "size": np.array([1.0, 4.0])}
    simulator = make_simulator(compiled, read_covariates(sources, compiled.covariates))
    assert simulator.backend == "jax"
    z, data = simulator.simulate(200, random_seed=0)
    assert data["group"].dtype.kind == "i" and set(data["group"].ravel()) == {0, 1, 2}
    assert set(data["size"]) == {1.0, 4.0}
    mean = np.take_along_axis(z, data["group"], axis=1) * data["size"][:, None]
    assert stats.kstest(((data["y"] - mean) / 0.1).ravel(), "norm").pvalue > TINY
    for wrong, error in [(np.full(9, 0.5), ValueError), (pm.Normal.dist(0, 1), TypeError)]:
        with pytest.raises(error, match=r"covariates\['group'\]: expected .*integers"):
            read_covariates({**sources, "group": wrong}, compiled.covariates)


@pytest.mark.parametrize("backend", BACKENDS)
def test_prefetched_blocks_are_those_of_their_generators(backend: str) -> None:
    simulator = regression({"X": lambda rng, n: rng.normal(size=(n, 2)), "t": GRID}, backend)
    plan = [(3, np.random.default_rng([1, block])) for block in range(3)]
    blocks = list(prefetched(simulator, plan))
    assert len(blocks) == 3
    for block, host in enumerate(blocks):
        expected = simulator.prefetch(3, np.random.default_rng([1, block]))
        assert host.keys() == expected.keys()
        for name in host:
            np.testing.assert_array_equal(host[name], expected[name])
