"""One small model for every distribution that PyMC exports: what the coverage table is made of."""

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

ROWS = 4
W = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])  # a ring of four places
COV = np.array([[1.0, 0.3], [0.3, 0.5]])

# What is no distribution of its own, or has no proper density to draw from.
NOT_DISTRIBUTIONS = {
    "Continuous": "a base class",
    "Discrete": "a base class",
    "Distribution": "a base class",
    "SymbolicRandomVariable": "a base class",
    "CustomDist": "the user's own: `logp=` for a density, `random=` for simulations, or `dist=`",
    "DensityDist": "an alias of `CustomDist`",
    "Simulator": "no log density: for a network alone",
    "Flat": "improper: a density, no simulations and no evidence",
    "HalfFlat": "improper: a density, no simulations and no evidence",
    "Lognormal": "an alias of `LogNormal`",
}

type Build = Callable[[TensorVariable], object]


def y(of: Callable[..., object], *, like: object = None, **parameters: object) -> object:
    """Observe four values of a distribution; `like` are valid ones."""
    observed = np.full(ROWS, 0.5) if like is None else np.asarray(like)
    return of("y", **parameters, observed=observed)


COUNTS = [0, 1, 2, 1]
ROWS_OF_2 = np.array([[0.2, 0.4], [0.1, -0.3], [0.0, 0.5]])
ROWS_OF_3 = np.array([[0.2, 0.4, 0.1], [0.1, -0.3, 0.7]])
SIMPLEX = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])

# `t` is uniform between 0.5 and 1.5: good for a location, a scale, a shape and, halved, for a
# probability.
DISTRIBUTIONS: dict[str, Build] = {
    "AR": lambda t: y(pm.AR, rho=[0.5 * t], sigma=t, init_dist=pm.Normal.dist(0, 1)),
    "AsymmetricLaplace": lambda t: y(pm.AsymmetricLaplace, kappa=t, mu=0.2, b=1.3),
    "Bernoulli": lambda t: y(pm.Bernoulli, p=t / 2, like=[0, 1, 1, 0]),
    "Beta": lambda t: y(pm.Beta, alpha=t, beta=2.0),
    "BetaBinomial": lambda t: y(pm.BetaBinomial, alpha=t, beta=2.0, n=5, like=COUNTS),
    "Binomial": lambda t: y(pm.Binomial, n=5, p=t / 2, like=COUNTS),
    "CAR": lambda t: y(pm.CAR, mu=np.zeros(4), W=W, alpha=t / 2, tau=1.3),
    "Categorical": lambda t: y(
        pm.Categorical, p=pt.stack([t / 2, (1 - t / 2) / 3, 2 * (1 - t / 2) / 3]), like=[0, 1, 2, 1]
    ),
    "Cauchy": lambda t: y(pm.Cauchy, alpha=t, beta=1.3),
    "Censored": lambda t: y(
        pm.Censored, dist=pm.Weibull.dist(1.5, t), lower=None, upper=1.1, like=[0.3, 1.1, 0.8, 1.1]
    ),
    "ChiSquared": lambda t: y(pm.ChiSquared, nu=2 * t),
    "DiracDelta": lambda t: (
        pm.Normal("x", t, 1.0, observed=0.3),
        y(pm.DiracDelta, c=2, like=[2, 2, 2, 2]),
    ),
    "Dirichlet": lambda t: pm.Dirichlet("y", pt.stack([t, 1.0, 2.0]), observed=SIMPLEX),
    "DirichletMultinomial": lambda t: pm.DirichletMultinomial(
        "y", n=5, a=pt.stack([t, 1.0, 2.0]), observed=[[1, 2, 2], [0, 5, 0]]
    ),
    "DiscreteUniform": lambda t: (
        pm.Normal("x", t, 1.0, observed=0.3),
        y(pm.DiscreteUniform, lower=0, upper=4, like=COUNTS),
    ),
    "DiscreteWeibull": lambda t: y(pm.DiscreteWeibull, q=t / 2, beta=0.9, like=COUNTS),
    "EulerMaruyama": lambda t: y(
        pm.EulerMaruyama,
        dt=0.1,
        sde_fn=lambda x, rate: (-rate * x, 0.5),
        sde_pars=(t,),
        init_dist=pm.Normal.dist(0, 1),
    ),
    "ExGaussian": lambda t: y(pm.ExGaussian, mu=0.2, sigma=1.3, nu=t),
    "Exponential": lambda t: y(pm.Exponential, lam=t),
    "GARCH11": lambda t: y(
        pm.GARCH11, omega=t, alpha_1=0.3, beta_1=0.2, initial_vol=1.1, like=[0.3, -0.4, 1.0, 0.2]
    ),
    "Gamma": lambda t: y(pm.Gamma, alpha=t, beta=1.3),
    "GaussianRandomWalk": lambda t: y(
        pm.GaussianRandomWalk, mu=0.1, sigma=t, init_dist=pm.Normal.dist(0, 1)
    ),
    "Geometric": lambda t: y(pm.Geometric, p=t / 2, like=[1, 2, 1, 4]),
    "Gumbel": lambda t: y(pm.Gumbel, mu=0.2, beta=t),
    "HalfCauchy": lambda t: y(pm.HalfCauchy, beta=t),
    "HalfNormal": lambda t: y(pm.HalfNormal, sigma=t),
    "HalfStudentT": lambda t: y(pm.HalfStudentT, nu=3.5, sigma=t),
    "HurdleGamma": lambda t: y(
        pm.HurdleGamma, psi=t / 2, alpha=t, beta=1.3, like=[0.0, 0.5, 1.2, 0.0]
    ),
    "HurdleLogNormal": lambda t: y(
        pm.HurdleLogNormal, psi=t / 2, mu=0.2, sigma=t, like=[0.0, 0.5, 1.2, 0.0]
    ),
    "HurdleNegativeBinomial": lambda t: y(
        pm.HurdleNegativeBinomial, psi=t / 2, mu=2.0, alpha=t, like=COUNTS
    ),
    "HurdlePoisson": lambda t: y(pm.HurdlePoisson, psi=t / 2, mu=1.3, like=COUNTS),
    "HyperGeometric": lambda t: (
        pm.Normal("x", t, 1.0, observed=0.3),
        y(pm.HyperGeometric, N=20, k=7, n=5, like=COUNTS),
    ),
    "ICAR": lambda t: y(
        pm.Normal, mu=t * pm.ICAR("phi", W=W), sigma=0.5, like=[0.3, -0.4, 0.2, -0.1]
    ),
    "Interpolated": lambda t: (
        pm.Normal("x", t, 1.0, observed=0.3),
        y(
            pm.Interpolated,
            x_points=np.linspace(0, 2, 9),
            pdf_points=np.exp(-np.linspace(0, 2, 9)),
        ),
    ),
    "InverseGamma": lambda t: y(pm.InverseGamma, alpha=2 + t, beta=1.3),
    "KroneckerNormal": lambda t: pm.KroneckerNormal(
        "y", mu=t * np.ones(4), covs=[COV, COV], sigma=0.3, observed=np.full(4, 0.5)
    ),
    "Kumaraswamy": lambda t: y(pm.Kumaraswamy, a=t, b=2.0),
    "LKJCholeskyCov": lambda t: pm.MvNormal(
        "y",
        0,
        chol=pm.LKJCholeskyCov("chol", eta=2.0, n=3, sd_dist=pm.HalfNormal.dist(1.3))[0] * t,
        observed=ROWS_OF_3,
    ),
    "LKJCorr": lambda t: pm.MvNormal(
        "y", 0, chol=t * pm.LKJCorr("chol", eta=2.0, n=3), observed=ROWS_OF_3
    ),
    "Laplace": lambda t: y(pm.Laplace, mu=0.2, b=t),
    "LogNormal": lambda t: y(pm.LogNormal, mu=0.2, sigma=t),
    "Logistic": lambda t: y(pm.Logistic, mu=0.2, s=t),
    "LogitNormal": lambda t: y(pm.LogitNormal, mu=0.2, sigma=t),
    "MatrixNormal": lambda t: pm.MatrixNormal(
        "y", mu=np.zeros((3, 2)), rowcov=t * np.eye(3), colcov=COV, observed=ROWS_OF_2
    ),
    "Mixture": lambda t: y(
        pm.Mixture, w=pt.stack([t / 2, 1 - t / 2]), comp_dists=[
            pm.Normal.dist(-1, 1.3), pm.StudentT.dist(4.5, mu=1.0, sigma=0.7)
        ],
    ),
    "Moyal": lambda t: y(pm.Moyal, mu=0.2, sigma=t),
    "Multinomial": lambda t: pm.Multinomial(
        "y", n=5, p=pt.stack([t / 2, (1 - t / 2) / 3, 2 * (1 - t / 2) / 3]),
        observed=[[1, 2, 2], [0, 5, 0]],
    ),
    "MvGaussianRandomWalk": lambda t: pm.MvGaussianRandomWalk(
        "y", mu=[0.1, 0.2], cov=t * COV, init_dist=pm.MvNormal.dist(np.zeros(2), COV), steps=2,
        observed=ROWS_OF_2,
    ),
    "MvNormal": lambda t: pm.MvNormal("y", [0.1, 0.2], t * COV, observed=ROWS_OF_2),
    "MvStudentT": lambda t: pm.MvStudentT(
        "y", nu=4.5, mu=[0.1, 0.2], scale=t * COV, observed=ROWS_OF_2
    ),
    "MvStudentTRandomWalk": lambda t: pm.MvStudentTRandomWalk(
        "y", nu=4.5, mu=[0.1, 0.2], scale=t * COV, steps=2,
        init_dist=pm.MvNormal.dist(np.zeros(2), COV), observed=ROWS_OF_2,
    ),
    "NegativeBinomial": lambda t: y(pm.NegativeBinomial, mu=2.0, alpha=t, like=COUNTS),
    "Normal": lambda t: y(pm.Normal, mu=0.2, sigma=t),
    "NormalMixture": lambda t: y(
        pm.NormalMixture, w=pt.stack([t / 2, 1 - t / 2]), mu=[-1.0, 1.0], sigma=[0.5, 1.3]
    ),
    "OrderedLogistic": lambda t: y(
        pm.OrderedLogistic, eta=t, cutpoints=[-0.5, 0.7], like=[0, 1, 2, 1]
    ),
    "OrderedMultinomial": lambda t: pm.OrderedMultinomial(
        "y", eta=t, cutpoints=np.array([-0.5, 0.7]), n=5, observed=[[1, 2, 2], [0, 5, 0]],
        compute_p=False,
    ),
    "OrderedProbit": lambda t: y(pm.OrderedProbit, eta=t, cutpoints=[-0.5, 0.7], like=[0, 1, 2, 1]),
    "Pareto": lambda t: y(pm.Pareto, alpha=1 + t, m=0.4),
    "Poisson": lambda t: y(pm.Poisson, mu=t, like=COUNTS),
    "PolyaGamma": lambda t: y(pm.PolyaGamma, h=1.0, z=t),
    "RandomWalk": lambda t: y(
        pm.RandomWalk, init_dist=pm.Normal.dist(0, 1), innovation_dist=pm.Laplace.dist(0, t),
        steps=3,
    ),
    "Rice": lambda t: y(pm.Rice, nu=t, sigma=1.3),
    "SkewNormal": lambda t: y(pm.SkewNormal, mu=0.2, sigma=t, alpha=3.0),
    "SkewStudentT": lambda t: y(pm.SkewStudentT, mu=0.2, sigma=t, a=3.0, b=2.5),
    "StickBreakingWeights": lambda t: pm.StickBreakingWeights("y", alpha=t, K=2, observed=SIMPLEX),
    "StudentT": lambda t: y(pm.StudentT, nu=4.5, mu=0.2, sigma=t),
    "Triangular": lambda t: y(pm.Triangular, lower=0.0, c=t, upper=2.0),
    "Truncated": lambda t: y(
        pm.Truncated, dist=pm.Gamma.dist(2.0, t), lower=0.1, upper=3.0
    ),
    "TruncatedNormal": lambda t: y(pm.TruncatedNormal, mu=0.2, sigma=t, lower=-1.0, upper=2.0),
    "Uniform": lambda t: y(pm.Uniform, lower=0.0, upper=2 * t, like=[0.2, 0.3, 0.1, 0.4]),
    "VonMises": lambda t: y(pm.VonMises, mu=0.3, kappa=t),
    "Wald": lambda t: y(pm.Wald, mu=t, lam=1.3),
    "Weibull": lambda t: y(pm.Weibull, alpha=1.5, beta=t),
    "Wishart": lambda t: pm.Wishart("y", nu=4, V=t * COV, observed=COV),
    "WishartBartlett": lambda t: pm.MvNormal(
        "y", 0, t * pm.WishartBartlett("S", COV, 4), observed=ROWS_OF_2
    ),
    "ZeroInflatedBinomial": lambda t: y(
        pm.ZeroInflatedBinomial, psi=t / 2, n=5, p=0.3, like=COUNTS
    ),
    "ZeroInflatedNegativeBinomial": lambda t: y(
        pm.ZeroInflatedNegativeBinomial, psi=t / 2, mu=2.0, alpha=1.3, like=COUNTS
    ),
    "ZeroInflatedPoisson": lambda t: y(pm.ZeroInflatedPoisson, psi=t / 2, mu=1.3, like=COUNTS),
    "ZeroSumNormal": lambda t: y(pm.ZeroSumNormal, sigma=t, like=[0.3, -0.4, 0.2, -0.1]),
}  # fmt: skip


def model_of(name: str) -> pm.Model:
    """The model of one distribution: `t` is free, and `y` (or what takes it) is observed."""
    with pm.Model() as model:
        # a variable's own name for what PyMC gives default dims of
        DISTRIBUTIONS[name](pm.Uniform("t", 0.5, 1.5))
    return model
