"""Discrete variables given back: enumeration on small models, forward filtering on chains."""

from itertools import product

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy import stats
from scipy.special import logsumexp, softmax

import pmcl
from pmcl.compile import UnsupportedModelError
from pmcl.metrics.elimination import TooEntangled, eliminate, elimination_order

N = 8
DRAWS = 300
RNG = np.random.default_rng(0)
Y = RNG.normal(size=(2, N)) * 2
COUNTS = RNG.poisson(3, size=(2, N))


def draws_of(data: dict, **values: np.ndarray) -> xr.DataTree:
    """Draws that somebody has: any will do, as what is given back is exact given each."""
    dims = {
        k: ("chain", "draw", "dataset", *(f"{k}_dim_{i}" for i in range(v.ndim - 2)))
        for k, v in values.items()
    }
    posterior = {k: (dims[k], np.broadcast_to(v, (1, *v.shape))) for k, v in values.items()}
    names = {"dataset": [str(i) for i in range(2)]}
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(posterior, coords=names),
            "observed_data": xr.Dataset(data, coords=names),
        }
    )


def mixture() -> pm.Model:
    with pm.Model(coords={"obs": range(N)}) as model:
        p = pm.Dirichlet("p", np.ones(3))
        mu = pm.Normal("mu", [-2, 0, 2], 1, shape=3)
        k = pm.Categorical("k", p, dims="obs")
        pm.Normal("y", mu[k], 0.5, observed=np.zeros(N), dims="obs")
    return model


MU = RNG.normal([-2, 0, 2], 0.3, size=(DRAWS, 2, 3))
P = RNG.dirichlet(np.ones(3), size=(DRAWS, 2))


def mixture_draws(y: np.ndarray = Y) -> xr.DataTree:
    return draws_of({"y": (("dataset", "obs"), y)}, mu=MU, p=P)


def close_to(drawn: np.ndarray, chance: np.ndarray) -> None:
    """Frequencies of values (draw, element) within 4.5 errors of mean probabilities."""
    for v in range(chance.shape[-1]):
        exact = chance[..., v]
        error = np.sqrt((exact * (1 - exact)).sum(axis=0)) / len(exact)
        assert (np.abs((drawn == v).mean(axis=0) - exact.mean(axis=0)) < 4.5 * error + 1e-9).all()


def test_the_members_of_a_mixture_are_those_of_bayes_rule():
    found = pmcl.recover_discrete(mixture_draws(), mixture())
    assert found["posterior"]["k"].dims == ("chain", "draw", "dataset", "obs")
    for i in range(2):
        terms = np.log(P[:, i, None]) + stats.norm(MU[:, i, None], 0.5).logpdf(Y[i][:, None])
        chance = softmax(terms, axis=-1)
        np.testing.assert_allclose(found["probability"]["k"][i], chance.mean(axis=0), atol=1e-6)
        close_to(found["posterior"]["k"].values[0, :, i], chance)


def test_many_datasets_go_to_a_store(tmp_path, monkeypatch):
    """Part by part, from draws in a store: what is found is the same."""
    from pmcl.parts import datasets

    monkeypatch.setattr(datasets, "TOGETHER", 1)
    tree, model = mixture_draws(), mixture()
    tree.to_zarr(tmp_path / "draws.zarr")
    lazy = xr.open_datatree(tmp_path / "draws.zarr", engine="zarr")
    stored = pmcl.recover_discrete(lazy, model, store=tmp_path / "found.zarr", random_seed=3)
    found = pmcl.recover_discrete(tree, model, random_seed=3)
    assert {*stored.children} == {"posterior", "probability"}
    for group in found.children:
        xr.testing.assert_allclose(stored[group].to_dataset().load(), found[group].to_dataset())
    with pytest.raises(FileExistsError, match="is there already"):
        pmcl.recover_discrete(lazy, model, store=tmp_path / "found.zarr")
    with pytest.raises(ValueError, match="client: expected `store=`"):
        pmcl.recover_discrete(tree, model, client=object())


def test_shorter_datasets_have_as_much_room_in_every_part(tmp_path, monkeypatch):
    from pmcl.parts import datasets

    monkeypatch.setattr(datasets, "TOGETHER", 1)
    y = Y.copy()
    y[0, 5:] = np.nan
    tree = mixture_draws(y)
    tree["observed_data"] = xr.DataTree(
        tree["observed_data"].to_dataset().assign(obs_length=("dataset", [5, N]))
    )
    found = pmcl.recover_discrete(tree, mixture(), random_seed=3)
    stored = pmcl.recover_discrete(tree, mixture(), store=tmp_path / "found.zarr", random_seed=3)
    for result in (found, stored):
        drawn, chance = result["posterior"]["k"].values, result["probability"]["k"].values
        assert (drawn[0, :, 0, 5:] == -1).all() and (drawn[0, :, 0, :5] >= 0).all()
        assert np.isnan(chance[0, 5:]).all() and np.isfinite(chance[1]).all()
    np.testing.assert_array_equal(stored["posterior"]["k"], found["posterior"]["k"])


def test_the_job_travels():
    from distributed.protocol.pickle import dumps, loads

    from pmcl.compile.discrete import discrete_model
    from pmcl.diagnostics.discrete import DiscreteJob

    discrete = discrete_model(mixture(), {"y"})
    job = DiscreteJob(discrete.compiled, discrete.values, mixture_draws(), ("k",), 3)
    task = job.task()
    arrived = loads(dumps(job))
    ours, theirs = (j.work(task.select([0, 1]))[0]["posterior"]["k"] for j in (job, arrived))
    np.testing.assert_array_equal(ours, theirs)


def test_missing_values_leave_the_prior():
    y = Y.copy()
    y[1, 3] = np.nan
    found = pmcl.recover_discrete(mixture_draws(y), mixture())
    np.testing.assert_allclose(found["probability"]["k"][1, 3], P[:, 1].mean(axis=0), atol=1e-6)


def test_probabilities_are_weighted_as_draws_are():
    tree = mixture_draws()
    weight = RNG.dirichlet(np.ones(DRAWS), size=2).T
    tree["sample_stats"] = xr.DataTree(
        xr.Dataset({"log_weight": (("chain", "draw", "dataset"), np.log(weight)[None])})
    )
    found = pmcl.recover_discrete(tree, mixture())
    terms = np.log(P[:, 0, None]) + stats.norm(MU[:, 0, None], 0.5).logpdf(Y[0][:, None])
    expected = np.einsum("s,snk->nk", weight[:, 0], softmax(terms, axis=-1))
    np.testing.assert_allclose(found["probability"]["k"][0], expected, atol=1e-6)


def test_a_change_point_has_its_enumerated_probabilities():
    with pm.Model(coords={"year": range(N)}) as model:
        when = pm.DiscreteUniform("when", 0, N)
        rate = pm.Exponential("rate", 1, shape=2)
        mean = pm.math.where(np.arange(N) < when, rate[0], rate[1])
        pm.Poisson("y", mean, observed=np.zeros(N, int), dims="year")
    rate = RNG.gamma(3, 1, size=(DRAWS, 2, 2))
    tree = draws_of({"y": (("dataset", "year"), COUNTS)}, rate=rate)
    found = pmcl.recover_discrete(tree, model)
    np.testing.assert_array_equal(found["probability"]["when_value"], np.arange(N + 1))
    for i in range(2):
        means = np.where(
            np.arange(N) < np.arange(N + 1)[:, None], rate[:, i, :1, None], rate[:, i, 1:, None]
        )
        chance = softmax(stats.poisson(means).logpmf(COUNTS[i]).sum(axis=-1), axis=-1)
        np.testing.assert_allclose(found["probability"]["when"][i], chance.mean(axis=0), atol=1e-6)
        close_to(found["posterior"]["when"].values[0, :, i], chance)


def chain(length: int = N) -> pm.Model:
    """States by name, each of which follows the one before."""
    with pm.Model(coords={"time": range(length)}) as model:
        stay = pm.Beta("stay", 2, 2, shape=2)
        T = pt.stack([pt.stack([stay[0], 1 - stay[0]]), pt.stack([1 - stay[1], stay[1]])])
        mu = pm.Normal("mu", [-1, 1], 1, shape=2)
        states = [pm.Bernoulli("s0", 0.3)]
        for t in range(1, length):
            states.append(pm.Categorical(f"s{t}", T[states[-1]]))
        path = pt.stack(states)
        pm.Normal("y", mu[path], 0.7, observed=np.zeros(length), dims="time")
    return model


def filtered(y: np.ndarray, stay: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """Smoothed probabilities of the states of one chain by forward and backward filtering."""
    T = np.array([[stay[0], 1 - stay[0]], [1 - stay[1], stay[1]]])
    emission = stats.norm(mu, 0.7).pdf(y[:, None])
    forward = [np.array([0.7, 0.3]) * emission[0]]
    for e in emission[1:]:
        forward.append((forward[-1] @ T) * e)
    backward = [np.ones(2)]
    for e in emission[:0:-1]:
        backward.append(T @ (e * backward[-1]))
    both = np.stack(forward) * np.stack(backward[::-1])
    return both / both.sum(axis=1, keepdims=True)


STAY = RNG.beta(4, 2, size=(DRAWS, 2, 2))
LEVEL = RNG.normal([-1, 1], 0.3, size=(DRAWS, 2, 2))


def test_a_chain_is_that_of_forward_filtering():
    tree = draws_of({"y": (("dataset", "time"), Y)}, stay=STAY, mu=LEVEL)
    found = pmcl.recover_discrete(tree, chain())
    for i in range(2):
        chance = np.stack([filtered(Y[i], STAY[s, i], LEVEL[s, i]) for s in range(DRAWS)])
        own = np.stack([found["probability"][f"s{t}"].values[i] for t in range(N)])
        np.testing.assert_allclose(own, chance.mean(axis=0), atol=1e-6)
        drawn = np.stack([found["posterior"][f"s{t}"].values[0, :, i] for t in range(N)], axis=1)
        close_to(drawn, chance)


def test_whole_paths_have_their_enumerated_probabilities():
    """Neighbours are drawn together, not each by itself."""
    stay, mu = np.tile([0.95, 0.9], (4000, 2, 1)), np.tile([-0.4, 0.4], (4000, 2, 1))
    y = Y[:, :4] / 4
    tree = draws_of({"y": (("dataset", "time"), y)}, stay=stay, mu=mu)
    found = pmcl.recover_discrete(tree, chain(4))
    T = np.array([[0.95, 0.05], [0.1, 0.9]])
    paths = np.array([*product(range(2), repeat=4)])
    prior = np.log(np.array([0.7, 0.3]))[paths[:, 0]]
    prior = prior + np.log(T)[paths[:, :-1], paths[:, 1:]].sum(axis=1)
    for i in range(2):
        log = prior + stats.norm(mu[0, 0][paths], 0.7).logpdf(y[i]).sum(axis=1)
        chance = np.exp(log - logsumexp(log))
        drawn = np.stack([found["posterior"][f"s{t}"].values[0, :, i] for t in range(4)], axis=1)
        count = np.bincount(drawn @ [8, 4, 2, 1], minlength=16)
        assert stats.chisquare(count, 4000 * chance).pvalue > 1e-3


def test_a_continuous_variable_may_hang_on_a_discrete_one():
    """Which of two priors a group's mean has: its term is one of the prior's."""
    with pm.Model(coords={"group": range(3), "obs": range(N)}) as model:
        wide = pm.Bernoulli("wide", 0.4, dims="group")
        theta = pm.Normal("theta", 0, 1 + 4 * wide, dims="group")
        pm.Normal("y", theta[0], 1, observed=np.zeros(N), dims="obs")
    theta = RNG.normal(size=(DRAWS, 2, 3)) * 3
    tree = draws_of({"y": (("dataset", "obs"), Y)}, theta=theta)
    found = pmcl.recover_discrete(tree, model)
    odds = 0.4 * stats.norm(0, 5).pdf(theta), 0.6 * stats.norm(0, 1).pdf(theta)
    chance = (odds[0] / sum(odds)).mean(axis=0)
    np.testing.assert_allclose(found["probability"]["wide"][..., 1], chance, atol=1e-6)


@pytest.mark.slow
def test_from_a_summed_model_to_its_members():
    """By hand: the mixture is refined without its members, which come back, for ragged data."""
    with pm.Model(coords={"obs": range(N)}) as summed:
        p = pm.Dirichlet("p", np.ones(3))
        mu = pm.Normal("mu", [-2, 0, 2], 1, shape=3)
        parts = [pm.Normal.dist(mu[k], 0.5) for k in range(3)]
        pm.Mixture("y", w=p, comp_dists=parts, observed=np.zeros(N), dims="obs")
    data = {"short": {"y": Y[0, :5]}, "long": {"y": Y[1]}}
    tree = pmcl.refine(summed, data, draws=200, random_seed=1, progressbar=False)
    found = pmcl.recover_discrete(tree, mixture(), var_names=["k"])
    assert (found["posterior"]["k"].values[0, :, 0, 5:] == -1).all()
    share = found["probability"]["k"]
    assert np.isnan(share[0, 5:]).all()
    np.testing.assert_allclose(share[1].sum("k_value"), 1.0)
    draws = tree["posterior"].to_dataset().isel(chain=0, dataset=0)
    like = stats.norm(draws["mu"].values[:, None], 0.5).logpdf(Y[0, :5, None])
    terms = np.log(draws["p"].values[:, None]) + like
    np.testing.assert_allclose(share[0, :5], softmax(terms, axis=-1).mean(axis=0), atol=1e-5)


def test_draws_of_pymc_have_no_dim_dataset():
    tree = mixture_draws()
    alone = xr.DataTree.from_dict(
        {k: v.to_dataset().isel(dataset=1, drop=True) for k, v in tree.children.items()}
    )
    found = pmcl.recover_discrete(alone, mixture())
    both = pmcl.recover_discrete(tree, mixture())
    assert found["posterior"]["k"].dims == ("chain", "draw", "obs")
    np.testing.assert_allclose(found["probability"]["k"], both["probability"]["k"][1], atol=1e-12)


def test_a_model_is_compiled_once_and_not_kept_alive():
    from gc import collect
    from weakref import ref

    from pmcl.compile.discrete import discrete_model

    model = mixture()
    assert discrete_model(model, {"y"}) is discrete_model(model, {"y"})
    gone = ref(model)
    del model
    collect()
    assert gone() is None


def test_groups_may_differ_from_dataset_to_dataset():
    """What depends on what is looked for anew where it is another thing."""
    with pm.Model(coords={"obs": range(N), "group": range(3)}) as model:
        of = pm.Data("of", np.zeros(N, int), dims="obs")
        high = pm.Bernoulli("high", 0.4, dims="group")
        mu = pm.Normal("mu", shape=2)
        pm.Normal("y", mu[high[of]], 1, observed=np.zeros(N), dims="obs")
    groups = RNG.integers(0, 3, size=(2, N))
    mu = RNG.normal([-0.5, 0.5], 0.1, size=(DRAWS, 2, 2))
    tree = draws_of({"y": (("dataset", "obs"), Y / 2)}, mu=mu)
    tree["constant_data"] = xr.DataTree(xr.Dataset({"of": (("dataset", "obs"), groups)}))
    found = pmcl.recover_discrete(tree, model)
    for i in range(2):
        like = stats.norm(mu[:, i, :, None], 1).logpdf(Y[i] / 2)
        log = np.stack([like[:, :, groups[i] == g].sum(axis=-1) for g in range(3)], axis=1)
        chance = softmax(log + np.log([0.6, 0.4]), axis=-1)
        np.testing.assert_allclose(found["probability"]["high"][i], chance.mean(axis=0), atol=1e-6)


def test_what_cannot_be_given_back_is_refused():
    tree = mixture_draws()
    with pytest.raises(UnsupportedModelError, match="expected the model with its discrete"):
        with pm.Model() as plain:
            mu = pm.Normal("mu", shape=3)
            pm.Normal("y", mu[0], 1, observed=np.zeros(N))
        pmcl.recover_discrete(tree, plain)
    with pytest.raises(UnsupportedModelError, match="'n': expected one of finitely many"):
        with pm.Model() as endless:
            n = pm.Poisson("n", 3)
            pm.Normal("y", n, 1, observed=np.zeros(N))
        pmcl.recover_discrete(tree, endless)
    with pytest.raises(ValueError, match="var_names: expected some of"):
        pmcl.recover_discrete(tree, mixture(), var_names=["mu"])
    with pytest.raises(ValueError, match="idata: expected draws of 'mu'"):
        bare = tree.copy()
        bare["posterior"] = xr.DataTree(tree["posterior"].to_dataset().drop_vars("mu"))
        pmcl.recover_discrete(bare, mixture())
    with pytest.raises(UnsupportedModelError, match="too large groups"):
        with pm.Model() as entangled:
            k = pm.Bernoulli("k", 0.5, shape=20)
            mu = pm.Normal("mu", shape=3)
            pm.Normal("y", mu[0] + k.sum(), 1, observed=np.zeros(N))
        pmcl.recover_discrete(tree, entangled)


def test_elimination_is_enumeration():
    """A graph with loops, where messages between neighbours alone would be wrong."""
    sizes, scopes = [2, 3, 2, 4, 2], [(0, 1), (1, 2), (2, 3), (0, 3), (4,), (1,), (0, 2, 4)]
    tables = {s: 2 * RNG.normal(size=(5, *(sizes[v] for v in s))) for s in scopes}
    order = elimination_order(scopes, sizes, most=100)
    _, chance = eliminate(tables, sizes, order, RNG)
    full = sum(
        t.reshape(5, *(sizes[i] if i in s else 1 for i in range(5))) for s, t in tables.items()
    )
    whole = softmax(full.reshape(5, -1), axis=1).reshape(full.shape)
    for v in range(5):
        others = tuple(1 + u for u in range(5) if u != v)
        np.testing.assert_allclose(chance[v], whole.sum(axis=others), atol=1e-12)
    many = {s: np.repeat(t[:1], 40_000, axis=0) for s, t in tables.items()}
    drawn, _ = eliminate(many, sizes, order, RNG)
    count = np.bincount(np.ravel_multi_index(drawn.T, sizes), minlength=whole[0].size)
    often = whole[0].ravel() * 40_000 > 5
    expected = whole[0].ravel()[often]
    assert (
        stats.chisquare(count[often], expected / expected.sum() * count[often].sum()).pvalue > 1e-3
    )
    with pytest.raises(TooEntangled):
        elimination_order([tuple(range(12))], [3] * 12, most=1000)
