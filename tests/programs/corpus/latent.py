"""Functions in space and time: Gaussian processes, neighbours, small networks."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


_X = np.linspace(0, 10, 40)[:, None]
_WAVE = np.sin(_X[:, 0]) * 2


def marginal_process() -> pm.Model:
    with pm.Model() as model:
        ell, eta = pm.Gamma("ell", alpha=2, beta=1), pm.HalfCauchy("eta", beta=5)
        gp = pm.gp.Marginal(cov_func=eta**2 * pm.gp.cov.Matern52(1, ell))
        sigma = pm.HalfCauchy("sigma", beta=5)
        gp.marginal_likelihood("y", X=_X, y=_WAVE + _rng().normal(0, 0.5, 40), sigma=sigma)
    return model


def latent_process_of_counts() -> pm.Model:
    with pm.Model() as model:
        ell, eta = pm.Gamma("ell", 4, 2), pm.HalfNormal("eta", 1)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ell))
        f = gp.prior("f", X=_X)
        pm.Poisson("y", pt.exp(f), observed=_rng().poisson(np.exp(_WAVE / 2)))
    return model


def process_in_a_basis() -> pm.Model:
    with pm.Model() as model:
        ell, eta = pm.InverseGamma("ell", 5, 10), pm.HalfNormal("eta", 2)
        gp = pm.gp.HSGP(m=[15], c=1.5, cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ell))
        f = gp.prior("f", X=_X)
        y = _WAVE + _rng().normal(0, 0.5, 40)
        pm.Normal("y", f, pm.HalfNormal("sigma", 1), observed=y)
    return model


def _ring(n: int) -> np.ndarray:
    w = np.zeros((n, n), int)
    i = np.arange(n)
    w[i, (i + 1) % n] = w[(i + 1) % n, i] = 1
    return w


def conditional_autoregression() -> pm.Model:
    y = _rng().poisson(np.exp(1 + 0.3 * np.sin(np.arange(25))))
    with pm.Model(coords={"area": range(25)}) as model:
        beta, tau = pm.Normal("beta", 0, 1), pm.Gamma("tau", 2, 1)
        alpha = pm.Uniform("alpha", 0, 0.95)
        phi = pm.CAR("phi", mu=np.zeros(25), tau=tau, alpha=alpha, W=_ring(25), dims="area")
        pm.Poisson("y", pt.exp(beta + phi), observed=y, dims="area")
    return model


def intrinsic_autoregression() -> pm.Model:
    y = _rng().poisson(np.exp(1 + 0.3 * np.sin(np.arange(25))))
    with pm.Model() as model:
        beta, scale = pm.Normal("beta", 0, 1), pm.HalfNormal("scale", 1)
        phi = pm.ICAR("phi", W=_ring(25))
        pm.Poisson("y", pt.exp(beta + scale * phi), observed=y)
    return model


def small_network() -> pm.Model:
    X = _rng().normal(size=(60, 2))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    with pm.Model() as model:
        w1 = pm.Normal("w_in_1", 0, sigma=1, shape=(2, 3))
        w2 = pm.Normal("w_1_out", 0, sigma=1, shape=3)
        out = pm.math.sigmoid(pm.math.dot(pm.math.tanh(pm.math.dot(X, w1)), w2))
        pm.Bernoulli("out", out, observed=y)
    return model


def factor_model() -> pm.Model:
    load = _rng().normal(size=(4, 1))
    y = (load @ _rng(1).normal(size=(1, 50))).T + _rng(2).normal(0, 0.5, (50, 4))
    with pm.Model() as model:
        first = pm.HalfNormal("first", 1)
        others = pm.Normal("others", shape=3)
        w = pt.concatenate([[first], others])
        psi = pm.HalfNormal("psi", 1, shape=4)
        cov = pt.outer(w, w) + pt.diag(psi**2)
        pm.MvNormal("y", mu=np.zeros(4), cov=cov, observed=y)
    return model
