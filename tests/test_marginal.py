"""Discrete parameters: summed out by pymc-extras, or by hand as the refusal says, it is one model.

pymc-extras lags behind PyMC, so these run in an environment of their own: `make marginal`.
"""

import warnings
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy import stats
from scipy.special import logsumexp

import pmcl
from pmcl.compile import compile_model, make_simulator, read_covariates
from pmcl.compile.conversion.graphs import host_mode
from pmcl.data.own import own_data

pymc_extras = pytest.importorskip(
    "pymc_extras", reason="needs pymc-extras, which has an environment of its own: make marginal"
)

N = 12
ROWS = np.random.default_rng(0).normal(size=N)
COUNTS = np.random.default_rng(1).poisson(3, size=N)


def mixture(y: np.ndarray = np.zeros(N)) -> pm.Model:  # noqa: B008
    """One indicator a row."""
    with pm.Model(coords={"obs": range(N)}) as model:
        p = pm.Dirichlet("p", np.ones(3))
        mu = pm.Normal("mu", [-2, 0, 2], 1, shape=3)
        k = pm.Categorical("k", p, dims="obs")
        pm.Normal("y", mu[k], 0.5, observed=y, dims="obs")
    return pymc_extras.marginalize(model, ["k"])


def mixture_by_hand() -> pm.Model:
    with pm.Model(coords={"obs": range(N)}) as model:
        p = pm.Dirichlet("p", np.ones(3))
        mu = pm.Normal("mu", [-2, 0, 2], 1, shape=3)
        parts = [pm.Normal.dist(mu[k], 0.5) for k in range(3)]
        pm.Mixture("y", w=p, comp_dists=parts, observed=np.zeros(N), dims="obs")
    return model


def change_point() -> pm.Model:
    """One discrete variable for all rows."""
    with pm.Model(coords={"year": range(N)}) as model:
        when = pm.DiscreteUniform("when", 0, N)
        rate = pm.Exponential("rate", 1, shape=2)
        mean = pm.math.where(np.arange(N) < when, rate[0], rate[1])
        pm.Poisson("y", mean, observed=np.zeros(N, int), dims="year")
    return pymc_extras.marginalize(model, ["when"])


def change_point_by_hand() -> pm.Model:
    def at(rate: pt.TensorVariable, when: int) -> pt.TensorVariable:
        return pm.Poisson.dist(pm.math.where(np.arange(N) < when, rate[0], rate[1]))

    def logp(
        value: pt.TensorVariable, rows: pt.TensorVariable, rate: pt.TensorVariable
    ) -> pt.TensorVariable:
        terms = [
            pm.logp(pm.DiscreteUniform.dist(0, N), when) + pm.logp(at(rate, when), value).sum()
            for when in range(N + 1)
        ]
        return pt.logsumexp(pt.stack(terms))

    def random(
        rows: np.ndarray, rate: np.ndarray, rng: np.random.Generator, size: object
    ) -> np.ndarray:
        when = rng.integers(0, N + 1)
        return rng.poisson(np.where(rows < when, rate[0], rate[1]))

    with pm.Model(coords={"year": range(N)}) as model:
        rate = pm.Exponential("rate", 1, shape=2)
        zeros = np.zeros(N, int)
        pm.CustomDist(
            "y",
            np.arange(N),
            rate,
            logp=logp,
            random=random,
            signature="(n),(k)->(n)",
            dtype="int64",
            observed=zeros,
            dims="year",
        )
    return model


def hidden_markov() -> pm.Model:
    """States that follow one another."""
    with pm.Model(coords={"time": range(N)}) as model:
        stay = pm.Beta("stay", 2, 2, shape=2)
        P = pt.stack([pt.stack([stay[0], 1 - stay[0]]), pt.stack([1 - stay[1], stay[1]])])
        start = pm.Categorical.dist(p=[0.5, 0.5])
        state = pymc_extras.distributions.DiscreteMarkovChain(
            "state", P=P, init_dist=start, dims="time"
        )
        mu = pm.Normal("mu", [-1, 1], 1, shape=2)
        pm.Normal("y", mu[state], 0.7, observed=np.zeros(N), dims="time")
    return pymc_extras.marginalize(model, ["state"])


def mixture_density(mu: np.ndarray, p: np.ndarray) -> float:
    return float(logsumexp(np.log(p) + stats.norm(mu, 0.5).logpdf(ROWS[:, None]), axis=1).sum())


def change_point_density(rate: np.ndarray) -> float:
    rates = [np.where(np.arange(N) < when, *rate) for when in range(N + 1)]
    terms = [stats.poisson(r).logpmf(COUNTS).sum() for r in rates]
    return float(logsumexp(terms) - np.log(N + 1))


def hidden_markov_density(mu: np.ndarray, stay: np.ndarray) -> float:
    """Sum over every path of states."""
    P = np.array([[stay[0], 1 - stay[0]], [1 - stay[1], stay[1]]])
    emission = stats.norm(mu, 0.7).logpdf(ROWS[:, None])
    paths = np.array(list(product(range(2), repeat=N)))
    path = np.log(0.5) + np.log(P)[paths[:, :-1], paths[:, 1:]].sum(axis=1)
    return float(logsumexp(path + emission[np.arange(N), paths].sum(axis=1)))


CASES = {
    "mixture": (mixture, mixture_density, {"y": ROWS}),
    "mixture by hand": (mixture_by_hand, mixture_density, {"y": ROWS}),
    "change point": (change_point, change_point_density, {"y": COUNTS}),
    "change point by hand": (change_point_by_hand, change_point_density, {"y": COUNTS}),
    "hidden Markov": (hidden_markov, hidden_markov_density, {"y": ROWS}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_density_is_the_sum_over_the_discrete_variable(name: str) -> None:
    make, truth, data = CASES[name]
    compiled = compile_model(make())
    like = jax.jit(jax.value_and_grad(compiled.log_likelihood))
    for seed in range(3):
        z = jnp.asarray(np.random.default_rng(seed).normal(size=compiled.dim))
        free = {k: np.asarray(v) for k, v in compiled.constrain(z).items()}
        value, gradient = like(z, data)
        np.testing.assert_allclose(value, truth(**free), rtol=2e-5)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("name", "discrete"), [("mixture", "k"), ("change point", "when"), ("hidden Markov", "state")]
)
def test_it_simulates_what_the_unsummed_model_simulates(name: str, discrete: str) -> None:
    summed = CASES[name][0]()
    compiled = compile_model(summed)
    simulator = make_simulator(compiled, read_covariates({}, compiled.covariates))
    assert simulator.backend == "jax", simulator.reason
    _, data = simulator.simulate(4000, random_seed=0)
    whole = pymc_extras.marginal.unmarginalize(summed, [discrete])
    host = pm.draw(whole["y"], 4000, random_seed=0, mode=host_mode())
    ours = np.asarray(data["y"])
    for statistic in (lambda y: y.mean(axis=1), lambda y: y.std(axis=1)):
        assert stats.ks_2samp(statistic(ours), statistic(host)).pvalue > 1e-3


def test_from_the_model_to_the_reference() -> None:
    model = mixture()
    data = {"y": ROWS + np.array([[0.0], [0.5]])}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # far from trained
        posterior = pmcl.fit_amortized(model, steps=200, random_seed=1, progressbar=False)
        posterior = posterior.adapt(data, name="one", steps=20, progressbar=False)
        draws = posterior.sample(data, 500, random_seed=1)
    reference = pmcl.sample_reference(
        model, data, draws=500, tune=500, random_seed=1, progressbar=False
    )
    compared = pmcl.compare(draws, reference)
    assert float(compared["mmd2"].max()) < 0.05


def given_back(name: str, **values: np.ndarray) -> tuple[xr.DataTree, xr.DataTree]:
    """Discrete variables for draws at hand of a summed model, and these draws."""
    make, _, data = CASES[name]
    model = make()
    posterior = xr.Dataset(
        {
            k: (("chain", "draw", *(f"{k}_{i}" for i in range(v.ndim - 1))), v[None])
            for k, v in values.items()
        }
    ).assign_coords(chain=[0], draw=np.arange(len(next(iter(values.values())))))
    observed = xr.Dataset({k: (model.named_vars_to_dims[k], v) for k, v in data.items()})
    tree = xr.DataTree.from_dict({"posterior": posterior, "observed_data": observed})
    return pmcl.recover_discrete(tree, model), tree


def test_states_of_a_hidden_chain_are_given_back() -> None:
    """pymc-extras' chain is one term of all states: its steps are known. By every path."""
    stay, mu = np.tile([0.8, 0.7], (3000, 1)), np.tile([-0.5, 0.6], (3000, 1))
    found, _ = given_back("hidden Markov", stay=stay, mu=mu)
    P = np.array([[0.8, 0.2], [0.3, 0.7]])
    paths = np.array(list(product(range(2), repeat=N)))
    log = np.log(P)[paths[:, :-1], paths[:, 1:]].sum(axis=1)
    log = log + stats.norm(mu[0], 0.7).logpdf(ROWS[:, None])[np.arange(N), paths].sum(axis=1)
    chance = np.exp(log - logsumexp(log))
    exact = (chance[:, None] * paths).sum(axis=0)
    np.testing.assert_allclose(found["probability"]["state"][:, 1], exact, atol=1e-6)
    often = found["posterior"]["state"].values[0].mean(axis=0)
    assert (np.abs(often - exact) < 4.5 * np.sqrt(exact * (1 - exact) / 3000) + 1e-9).all()


def test_members_of_a_mixture_are_those_that_pymc_extras_gives_back() -> None:
    rng = np.random.default_rng(2)
    mu, p = rng.normal([-2, 0, 2], 0.3, size=(2000, 3)), rng.dirichlet(np.ones(3), size=2000)
    found, tree = given_back("mixture", mu=mu, p=p)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = mixture(ROWS)
        theirs = pymc_extras.marginal.recover(
            tree, model=model, extend_inferencedata=False, random_seed=1
        )
    for v in range(3):
        often = (theirs["k"].values[0] == v).mean(axis=0)
        assert (np.abs(often - found["probability"]["k"][:, v].values) < 0.05).all()


def test_a_state_space_leaves_gaps_out() -> None:
    """pymc-extras' Kalman filter, of a series with gaps in the middle, against a dense normal."""
    from pymc_extras.statespace import structural

    y = np.cumsum(np.random.default_rng(0).normal(size=20))
    y[[5, 6, 11]] = np.nan
    there, steps = ~np.isnan(y), np.arange(20)
    parts = structural.LevelTrendComponent(order=1, innovations_order=1)
    space = (parts + structural.MeasurementError("obs")).build(verbose=False)
    with pm.Model(coords=space.coords) as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pymc-extras' own, of the gaps
        pm.Deterministic("P0", pt.eye(1), dims=space.param_dims["P0"])
        pm.Normal("initial_level_trend", dims=space.param_dims["initial_level_trend"])
        pm.HalfNormal("sigma_level_trend", dims=space.param_dims["sigma_level_trend"])
        pm.HalfNormal("sigma_obs")
        space.build_statespace_graph(pd.DataFrame({"y": y}))
    compiled = compile_model(model)
    for z in np.random.default_rng(1).normal(size=(4, 3)):
        values = compiled.constrain(z, own_data(model, say=False))
        first, walk, noise = (
            np.ravel(values[n]) for n in ("initial_level_trend", "sigma_level_trend", "sigma_obs")
        )
        cov = 1 + walk**2 * np.minimum(steps[:, None], steps) + noise**2 * np.eye(20)
        exact = stats.multivariate_normal.logpdf(
            y[there], np.full(there.sum(), first), cov[np.ix_(there, there)]
        )
        found = compiled.log_likelihood(z, own_data(model, say=False))
        assert float(found) == pytest.approx(exact, rel=1e-6)  # the filter has a jitter
    tree = pmcl.refine(model, random_seed=0, progressbar=False)
    assert tree["dataset_stats"]["khat"].item() < 0.7
