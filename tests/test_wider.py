"""Wider proposals as a judge, and tails that so many draws do not tell."""

import jax
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pmcl
from pmcl.compile import compile_model
from pmcl.draws.drawn import Drawn, judge
from pmcl.refinement.standing import tails
from pmcl.refinement.wider import around, moved
from pmcl.runtime import precision

N, M = 1000, 256


def seen(target, proposal, wide, rng) -> float:
    """By how much draws of `wide` move moments of those of `proposal`, densities of SciPy's."""
    z, u = proposal.rvs(N, random_state=rng), wide.rvs(M, random_state=rng)

    def drawn(x: np.ndarray) -> Drawn:
        given = (proposal.logpdf(x), target.logpdf(x), np.zeros_like(x))
        return Drawn(x[None, :, None], *(v[None] for v in given))

    old = drawn(z)
    weights = judge(old).log_weights
    return float(moved(old, weights, wide.logpdf(z)[None], drawn(u), wide.logpdf(u)[None])[0])


@pytest.mark.parametrize("seed", range(3))
def test_a_wider_proposal_sees_what_weights_do_not(seed: int) -> None:
    """Half of the target is far from all draws: their weights are equal, and k-hat sees nothing."""
    rng = np.random.default_rng(seed)

    class Two:
        logpdf = staticmethod(
            lambda x: np.logaddexp(stats.norm.logpdf(x), stats.norm.logpdf(x, 8)) - np.log(2)
        )

    normal = stats.norm()
    assert seen(Two, normal, stats.t(5, 0, 5), rng) > 0.5
    assert seen(normal, normal, stats.t(5, 0, 5), rng) < 0.05
    # tails of a t distribution with three degrees of freedom, by one of half the width
    assert seen(stats.t(3), stats.norm(0, 1), stats.t(5, 0, 5), rng) > 0.1


def test_they_lie_about_the_weighted_draws() -> None:
    rng = np.random.default_rng(0)
    covariance = np.array([[4.0, 1.0], [1.0, 0.5]])
    z = rng.multivariate_normal([3, -1], covariance, size=(2, 5000))
    z[1, 0] = np.inf  # of no weight
    log_weights = np.full((2, 5000), -np.log(5000))
    log_weights[1, 0] = -np.inf
    found = around(z, log_weights)
    for i in (0, 1):
        for k, times in enumerate((2.0, 10.0)):
            lower = found.scale.lower[i, k] / (1 + times / np.sqrt(2))
            np.testing.assert_allclose(lower @ lower.T, covariance, rtol=0.1)
            np.testing.assert_allclose(found.shift[i, k], [3, -1], atol=0.15)
    with precision.scope():
        one = jax.tree.map(lambda x: x[0, 0], found)
        scale = one.scale.lower @ one.scale.lower.T
        exact = stats.multivariate_t(one.shift, scale, df=5).logpdf([1.0, 1.0])
        assert float(one.log_prob(np.array([1.0, 1.0]))) == pytest.approx(exact, rel=1e-9)


def test_tails_of_a_posterior_are_found() -> None:
    """The mean of five rows under a flat prior has three degrees of freedom, in closed form."""
    y = np.array([1.2, -0.4, 0.7, 2.1, 0.1])
    with pm.Model() as model:
        mu, sigma = pm.Uniform("mu", -1000, 1000), pm.Uniform("sigma", 0, 1000)
        pm.Normal("y", mu, sigma, observed=y)
    compiled = compile_model(model)
    # sd of a uniform prior on sigma: t with n - 2 degrees, scale sd * sqrt((n - 1) / n / (n - 2))
    scale = np.sqrt(((y - y.mean()) ** 2).sum() / (5 * 3))
    exact = stats.t(3, y.mean(), scale)
    for seed in range(4):
        tree = pmcl.refine(compiled, {"y": y}, random_seed=seed, fallback=None, progressbar=False)
        said = tree["dataset_stats"]["warning"].values[0]
        z = tree["posterior"]["mu"].values.ravel()
        inside = exact.ppf([0.005, 0.05, 0.25, 0.5, 0.75, 0.95, 0.995])
        found = (z[:, None] <= inside).mean(axis=0)
        np.testing.assert_allclose(found, exact.cdf(inside), atol=0.05)
        assert abs(z.std() / exact.std() - 1) < 0.3 or "the sd of mu_interval__ rests on" in said


def test_draws_whose_sd_means_nothing_are_named() -> None:
    with pm.Model() as model:
        pm.Normal("a", shape=2)
        b = pm.HalfNormal("b")
        pm.Normal("y", b, observed=[0.0])
    compiled, rng = compile_model(model), np.random.default_rng(1)
    z = rng.normal(size=(3, N, 3))
    z[1, :, 2] = rng.standard_cauchy(N)
    z[2, 0, 1] = 100.0  # one far draw is all there is of its sd
    equal = np.full((3, N), -np.log(N))
    said = tails(compiled, z, equal)
    assert said[0] == "" and said[1].startswith("the sd of b_log__ rests on")
    assert said[2].startswith("the sd of a rests on 1 draw")
    nothing = equal.copy()
    nothing[2, 0] = -np.inf  # it has no weight
    assert tails(compiled, z, nothing)[2] == ""
    assert (tails(compiled, z[:, :20], equal[:, :20]) == "").all()  # too few to tell
