"""What makes draws trustworthy: weights, and NUTS where nothing else helps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import nutpie
import pymc as pm
import pytest
import xarray as xr
from scipy import stats
from scipy.integrate import quad

import pmcl
from pmcl.compile import compile_model
from pmcl.data.reading import as_task, layout_of, task_of
from pmcl.data.task import Layout, Task
from pmcl.draws.drawn import Drawn, judge
from pmcl.metrics import importance_diagnostics, posterior_discrepancy
from pmcl.reference.checks import check_datasets
from pmcl.reference.nuts import Begin
from pmcl.reference.shared_model import share_data
from pmcl.reference.whitened import Metric, whitened
from pmcl.refinement.fallback import MOST_RHAT, by_nuts
from pmcl.refinement.standing import elsewhere, objections
from pmcl.runtime import precision
from pmcl.search.search import Search


def test_self_consistency_variance() -> None:
    ratio = np.array([[0.0, 1.0, 5.0, np.nan], [np.nan, np.inf, 2.0, -np.inf]])
    np.testing.assert_allclose(
        importance_diagnostics(ratio).sc_variance, [np.var([0, 1, 5], ddof=1), np.inf]
    )


def test_a_white_model_has_the_density_of_the_model() -> None:
    def model_of(y: np.ndarray) -> pm.Model:
        with pm.Model(coords={"obs": range(4), "group": ["a", "b"]}) as model:
            mu = pm.Normal("mu", 1, 2, dims="group")
            sd = pm.HalfNormal("sd", 1)
            pm.Normal("y", mu[0] + mu[1], sd, observed=y, dims="obs")
        return model

    y = np.array([0.3, 1.0, -0.2, 0.8])
    model = model_of(np.zeros(4))
    checked = check_datasets(model, [{"y": y}], ["one"])
    shared = share_data(model, checked.arrays)
    white = whitened(shared.model, ["mu", "sd_log__"], 3)
    draws = np.random.default_rng(0).normal(size=(50, 3)) @ np.array(
        [[2.0, 0.5, 0.0], [0.0, 1.0, 0.1], [0.0, 0.0, 0.3]]
    )
    metric = Metric.of(draws)
    for variable, value in white.updates(metric).items():
        variable.set_value(value)
    log_density = model_of(y).compile_logp(mode="FAST_COMPILE")
    in_white = white.model.compile_logp(mode="FAST_COMPILE")
    for u in np.random.default_rng(1).normal(size=(5, 3)):
        z = metric.back(u)
        expected = log_density({"mu": z[:2], "sd_log__": z[2]})
        np.testing.assert_allclose(in_white({"u": u}), expected, rtol=1e-10)
    # The metric's own coordinates have mean zero and about unit covariance.
    u = np.linalg.solve(metric.scale, (draws - metric.centre).T).T
    np.testing.assert_allclose(u.mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(np.cov(u.T, ddof=0), np.eye(3), atol=0.02)
    assert Metric.of(np.full((1, 3), np.nan)).scale.shape == (3, 3)
    assert Metric.of(np.zeros((2, 300))).scale.shape == (300,)


@pytest.fixture(scope="module")
def banana() -> tuple[pm.Model, dict[str, np.ndarray]]:
    """Two datasets that say nothing, where the posterior is bent; and one where it is not."""
    with pm.Model(coords={"obs": range(1)}) as model:
        sd = pm.Data("sd", np.ones(1), dims="obs")
        a = pm.Normal("a", 0, 1)
        b = pm.Normal("b", a**2, 0.5)
        pm.Normal("y", b, sd, observed=np.zeros(1), dims="obs")
    return model, {"sd": np.array([[1e3], [0.1], [1e3]]), "y": np.array([[0.0], [-3.0], [1.0]])}


@pytest.mark.filterwarnings("ignore:NUTS, too:UserWarning")
def test_nuts_takes_over_where_khat_is_too_high(banana, monkeypatch) -> None:
    model, data = banana
    compiled = []
    compile_model = nutpie.compile_pymc_model
    monkeypatch.setattr(
        nutpie, "compile_pymc_model", lambda *a, **k: compiled.append(1) or compile_model(*a, **k)
    )
    settings = pmcl.Refine(steps=0, rounds=0)
    args = {"draws": 2000, "refine": settings, "random_seed": 1, "progressbar": False}
    with pytest.warns(UserWarning, match=r"2 of 3 datasets should not be .*\('0', '2'; of '0': k-"):
        plain = pmcl.refine(model, data, fallback=None, **args)
    assert not compiled
    tree = pmcl.refine(model, data, **args)  # "auto": they are few
    assert len(compiled) == 1  # for both
    before, stats = (t["dataset_stats"].to_dataset() for t in (plain, tree))
    np.testing.assert_array_equal(before["khat"] > 0.7, [True, False, True])
    assert stats["engine"].values[[0, 2]].tolist() == ["nuts", "nuts"]
    assert stats["engine"].values[1] == before["engine"].values[1]
    # What is said of the proposal is as it was; the dataset that is good has the same draws.
    np.testing.assert_array_equal(stats["khat"], before["khat"])
    a, b = (t["unconstrained_posterior"].to_dataset().isel(dataset=1) for t in (plain, tree))
    xr.testing.assert_equal(a, b)
    assert np.isnan(stats["rhat"].values[1]) and stats["warning"].values[1] == ""
    rng = np.random.default_rng(3)
    truth = rng.normal(size=(2000, 2)) * [1, 0.5]
    truth[:, 1] += truth[:, 0] ** 2
    for i in (0, 2):
        assert np.isnan(tree["sample_stats"]["log_q"].values[:, :, i]).all()
        assert stats["rhat"].values[i] < 1.05
        z = np.stack([tree["posterior"][n].values[0, :, i] for n in ("a", "b")], axis=1)
        assert posterior_discrepancy(z, truth, n=1000, rng=rng).mmd2 < 0.01
    again = pmcl.refine(model, data, fallback="nuts", **args)
    xr.testing.assert_equal(again["posterior"].to_dataset(), tree["posterior"].to_dataset())
    # as on an accelerator, where the chains of many walk in one program
    monkeypatch.setattr("pmcl.refinement.finishing._in_one_program", lambda datasets: True)
    many = pmcl.refine(model, data, **args)["dataset_stats"].to_dataset()
    assert many["engine"].values.tolist() == stats["engine"].values.tolist()
    assert (many["rhat"].values[[0, 2]] < 1.05).all() and len(compiled) == 1
    monkeypatch.setattr("pmcl.refinement.finishing._MANY", 1)  # two are too many
    with pytest.warns(UserWarning, match="2 of 3 datasets should not be trusted"):
        left = pmcl.refine(model, data, **args)
    xr.testing.assert_equal(left["posterior"].to_dataset(), plain["posterior"].to_dataset())


@pytest.mark.filterwarnings("ignore:NUTS, too:UserWarning")
def test_nuts_that_fails_on_one_dataset_leaves_the_others(banana, monkeypatch) -> None:
    model, data = banana
    sample, calls = nutpie.sample, []

    def fails_at_first(*args, **kwargs):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("all initialization points failed")
        return sample(*args, **kwargs)

    args = {"draws": 400, "refine": pmcl.Refine(steps=0, rounds=0), "progressbar": False}
    with pytest.warns(UserWarning, match="should not be trusted.*k-hat"):
        plain = pmcl.refine(model, data, random_seed=0, fallback=None, **args)
    monkeypatch.setattr(nutpie, "sample", fails_at_first)
    with pytest.warns(UserWarning, match="'0'"):
        tree = pmcl.refine(model, data, fallback="nuts", random_seed=0, **args)
    stats = tree["dataset_stats"].to_dataset()
    assert stats["engine"].values[2] == "nuts" and stats["engine"].values[0] != "nuts"
    assert "NUTS failed on dataset '0': all init" in stats["warning"].values[0]
    assert "k-hat" in stats["warning"].values[0]
    np.testing.assert_array_equal(
        tree["posterior"]["a"].isel(dataset=0), plain["posterior"]["a"].isel(dataset=0)
    )


def test_chains_begin_at_the_best_draws_in_every_mode() -> None:
    """Two modes: chains that all began between them might all find the same one, and agree."""
    with pm.Model(coords={"obs": range(1)}) as model:
        a = pm.Normal("a", 0, 5)
        pm.Normal("y", a**2, 0.5, observed=np.zeros(1), dims="obs")
    rng = np.random.default_rng(0)
    z = rng.choice([-4.0, 4.0], size=(500, 1)) + 0.06 * rng.normal(size=(500, 1))
    begin = Begin.at(z)
    starts = np.array([begin.metric.back(begin.start(seed)) for seed in range(20)])
    assert np.all(np.abs(starts[:, None] - z[None]).min(axis=1) < 1e-12)
    assert len(set(np.sign(starts[:, 0]))) == 2
    compiled = compile_model(model)
    task = as_task({"y": np.full((1, 1), 16.0)}, layout_of(compiled))
    options = {"draws": 400, "seed": 0, "progressbar": False}
    found = by_nuts(compiled, task, z[None], np.array([0]), **options)
    assert set(np.sign(found.drawn.z[0, :, 0])) == {-1.0, 1.0}
    assert "r-hat of NUTS" in found.warning[0]


@pytest.mark.slow
def test_chains_that_are_stuck_begin_again_at_the_initial_point() -> None:
    """A centred hierarchy's density has no bound where its scale vanishes: draws there are no use.

    Conjugate given the scale; the scale's posterior by quadrature.
    """
    y = np.array([3.0, -2.0, 4.0, 0.5, -3.5, 1.0, 6.0, -5.0])
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 5)
        theta = pm.Normal("theta", 0, tau, shape=8)
        pm.Normal("y", theta, 1, observed=y)
    compiled = compile_model(model)
    stuck = np.random.default_rng(0).normal([-19.0] + [0.0] * 8, [0.3] + [1e-9] * 8, (200, 9))
    task = task_of(compiled, {"y": y[None]})
    options = {"draws": 1000, "seed": 0, "progressbar": False}
    found = by_nuts(compiled, task, stuck[None], np.array([0]), **options)
    grid = np.linspace(0.01, 25, 4000)
    log_p = stats.halfnorm(scale=5).logpdf(grid)
    log_p += stats.norm(0, np.sqrt(1 + grid**2)[:, None]).logpdf(y).sum(axis=1)
    p = np.exp(log_p - log_p.max())
    mean = (p * np.log(grid)).sum() / p.sum()
    sd = np.sqrt((p * (np.log(grid) - mean) ** 2).sum() / p.sum())
    log_tau = found.drawn.z[0, :, 0]
    assert found.rhat[0] < MOST_RHAT
    assert abs(log_tau.mean() - mean) < 0.2 * sd
    assert abs(log_tau.std() / sd - 1) < 0.2


def test_what_is_asked_for_is_checked(banana) -> None:
    model, data = banana
    with pytest.raises(ValueError, match="correct: expected 'auto', 'psis' or None"):
        pmcl.refine(model, data, correct="smc", progressbar=False)
    with pytest.raises(ValueError, match="draws: with a fallback expected at least 25, .* got 20"):
        pmcl.refine(model, data, draws=20, fallback="nuts", progressbar=False)
    with pytest.raises(ValueError, match="fallback: expected 'auto', 'nuts' or None, got 'vi'"):
        pmcl.refine(model, data, fallback="vi", progressbar=False)


class Modes(eqx.Module):
    """Two normals in the plane, of which the second has the first's evidence times e^`more`."""

    more: float = eqx.field(static=True)

    def __call__(self, z: jax.Array, data: dict[str, jax.Array], mask: None) -> jax.Array:
        at = jnp.asarray([[-2.0, 0.0], [2.0, 0.0]])
        log_p = -0.5 * jnp.sum(((z - at) / 0.3) ** 2, axis=1)
        return jax.nn.logsumexp(log_p + jnp.asarray([0.0, self.more]))


@pytest.mark.parametrize(
    ("more", "both", "said"), [(5.0, False, 1), (5.0, True, 0), (-9, False, 0)]
)
def test_a_mode_without_draws_is_seen_from_elsewhere(more, both, said):
    """Weights of draws at one mode are perfect, whatever there is elsewhere."""
    rng, n = np.random.default_rng(0), 1000
    z = 0.3 * rng.normal(size=(1, n, 2)) + np.array([-2.0, 0.0])
    log_q = stats.norm.logpdf((z - [-2, 0]) / 0.3).sum(axis=2) - 2 * np.log(0.3)
    if both:
        z[0, ::2, 0] += 4.0
    with precision.scope():
        density = Modes(more)
        log_p = np.asarray(jax.vmap(lambda u: density(u, {}, None))(z[0]))[None]
        drawn = Drawn(z, log_q, log_p, np.zeros_like(log_p))
        judged = judge(drawn)
        assert both or (judged.khat[0] < 0 and judged.efficiency[0] > 0.99)
        task = Task(Layout((), 0, None, frozenset(), {}), {"y": np.zeros((1, 1))}, ("a",), None)
        search = Search.at(density, np.zeros((1, 2)), np.ones(2))
        found, at = elsewhere(search, task, np.arange(1), drawn, judged, starts=8, seed=0)
    assert (found != "").sum() == said == np.isfinite(at).all(axis=(1, 2)).sum()
    assert not said or "found a mode of +5.0 nats of evidence" in found[0]


def test_few_effective_draws_and_rounded_densities_are_objections():
    rng, n = np.random.default_rng(0), 1000
    good = rng.normal(0, 0.1, size=n)
    poor = np.where(np.arange(n) < 60, 10.0, 0.0)  # bounded: k-hat sees no tail
    nothing = np.zeros((3, n))
    log_prior = np.stack([good, poor, good + 1e15])
    drawn = Drawn(np.zeros((3, n, 1)), nothing, log_prior, nothing)
    found = objections(drawn, judge(drawn), n)
    assert found[0] == "" and "efficiency 0.06" in found[1]
    assert found[2].endswith("the log density is of the order of 1e+15: no resolution is left")
    assert (objections(drawn, judge(drawn), 10)[:2] == "").all()  # of ten draws nothing is known


def test_a_tail_of_weights_that_are_nearly_alike_is_no_objection():
    rng, n = np.random.default_rng(0), 1000
    tail = np.abs(rng.standard_cauchy(n))
    log_prior = np.stack([np.log1p(0.004 * np.minimum(tail, 300)), np.log1p(tail)])
    nothing = np.zeros((2, n))
    drawn = Drawn(np.zeros((2, n, 1)), nothing, log_prior, nothing)
    judged = judge(drawn)
    assert (judged.khat > 0.7).all() and judged.efficiency[0] > 0.99 > judged.efficiency[1]
    found = objections(drawn, judged, n)
    assert found[0] == "" and "k-hat" in found[1]


@pytest.mark.parametrize("seed", [0, 1])
def test_refinement_begins_again_at_a_mode_that_its_searches_missed(seed):
    """With seed 0 both searches end at one of two modes; then another look finds the other."""
    with pm.Model(coords={"obs": range(10)}) as model:
        x = pm.Normal("x", 0.5, 2)
        pm.Normal("y", abs(x), 0.5, observed=np.zeros(10), dims="obs")
    tree = pmcl.refine(
        model,
        {"y": np.full((1, 10), 3.0)},
        refine=pmcl.Refine(starts=2),
        random_seed=seed,
        progressbar=False,
    )
    stats_ = tree["dataset_stats"].to_dataset()
    assert stats_["warning"].values == [""]
    assert ("begun again" in stats_["note"].values[0]) == (seed == 0)
    density = lambda u: stats.norm.pdf(u, 0.5, 2) * stats.norm.pdf(abs(u), 3, 0.5 / 10**0.5)  # noqa: E731
    left, right = quad(density, -5, 0)[0], quad(density, 0, 5)[0]
    share = float((tree["posterior"]["x"] > 0).mean())
    assert share == pytest.approx(right / (left + right), abs=0.03)
