"""Small posteriors whose truth is known: by a grid of the density that PyMC has, or by formulas.

Each is of one kind of trouble: several modes, groups, vague or improper priors, heavy tails, edges.
Reference draws are on the unconstrained scale, one column a value variable's entry, in the model's
order.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from jax import enable_x64
from pymc.sampling.jax import get_jaxified_logp
from scipy import special, stats

DRAWS = 20_000
_POINTS = {1: 20_001, 2: 601, 3: 121}  # along each dim
_NATS = 25.0  # below the highest point nothing is looked at

Reference = Callable[[pm.Model, np.random.Generator], np.ndarray]


class Truth(NamedTuple):
    """A model, what makes it hard, and draws of its posterior (draw, entry of z)."""

    name: str
    kind: str
    build: Callable[[], None]
    reference: Reference

    def model(self) -> pm.Model:
        with pm.Model() as model:
            self.build()
        return model


def on_a_grid(*bounds: tuple[float, float]) -> Reference:
    """Draw from cells of a grid between bounds of z, which is laid anew where the mass is."""

    def draw(model: pm.Model, rng: np.random.Generator) -> np.ndarray:
        with enable_x64(True):
            point = model.initial_point()
            shapes = [np.shape(point[v.name]) for v in model.value_vars]
            sizes = [int(np.prod(s)) for s in shapes]
            raw = get_jaxified_logp(model)

            @jax.jit
            @jax.vmap
            def log_p(z):  # noqa: ANN001, ANN202
                parts, at = [], 0
                for size, shape in zip(sizes, shapes, strict=True):
                    parts.append(z[at : at + size].reshape(shape))
                    at += size
                return raw(parts)

            assert sum(sizes) == len(bounds)
            box = np.asarray(bounds, float)
            for _ in range(2):
                axes = [np.linspace(*b, _POINTS[len(box)]) for b in box]
                mesh = np.stack([m.ravel() for m in np.meshgrid(*axes, indexing="ij")], axis=1)
                found = [np.asarray(log_p(part)) for part in np.array_split(mesh, 8)]
                height = np.nan_to_num(np.concatenate(found), nan=-np.inf)
                inside = mesh[height > height.max() - _NATS]
                step = np.array([a[1] - a[0] for a in axes])
                low, high = inside.min(axis=0) - step, inside.max(axis=0) + step
                box = np.stack([np.maximum(low, box[:, 0]), np.minimum(high, box[:, 1])], axis=1)
        chance = np.exp(height - height.max())
        cells = rng.choice(len(mesh), DRAWS, p=chance / chance.sum())
        return mesh[cells] + rng.uniform(-0.5, 0.5, (DRAWS, len(box))) * step

    return draw


# --- several modes --------------------------------------------------------------------------------


def sign() -> None:
    mu = pm.Normal("mu", 0, 3)
    pm.Normal("y", abs(mu), 1, observed=[1.8, 2.5, 1.1, 2.2])


def square() -> None:
    mu = pm.Normal("mu", 0.5, 1)
    pm.Normal("y", mu**2, 0.5, observed=[1.1, 0.7, 1.4])


def two_beliefs() -> None:
    mu = pm.NormalMixture("mu", w=[0.3, 0.7], mu=[-3.0, 3.0], sigma=[0.3, 0.5])
    pm.Normal("y", mu, 3, observed=[0.5])


def narrow_and_wide() -> None:
    mu = pm.NormalMixture("mu", w=[0.4, 0.6], mu=[2.0, -1.0], sigma=[0.05, 1.0])
    pm.Normal("y", mu, 2, observed=[0.3, 0.9])


def switched_labels() -> None:
    mu = pm.Normal("mu", 0, 5, shape=2)
    y = np.concatenate([stats.norm.ppf(np.linspace(0.03, 0.97, 16)) + m for m in (-2, 2.5)])
    pm.NormalMixture("y", w=[0.5, 0.5], mu=mu, sigma=1.0, observed=y)


def unequal_labels() -> None:
    mu = pm.Normal("mu", 0, 3, shape=2)
    y = np.concatenate([stats.norm.ppf(np.linspace(0.05, 0.95, 9)) + m for m in (-1.5, 2)])
    pm.NormalMixture("y", w=[0.45, 0.55], mu=mu, sigma=1.0, observed=y)


def four_squares() -> None:
    a, b = pm.Normal("a"), pm.Normal("b")
    pm.Normal("y", pt.stack([a**2, b**2]), 0.3, observed=[1.0, 0.6])


def product() -> None:
    a, b = pm.Normal("a"), pm.Normal("b")
    pm.Normal("y", a * b, 0.3, observed=[0.8, 1.1])


def ring() -> None:
    a, b = pm.Normal("a", 0, 3), pm.Normal("b", 0, 3)
    pm.Normal("y", pt.sqrt(a**2 + b**2), 0.3, observed=[2.0])


def wave() -> None:
    x = pm.Normal("x", 0.2, 1)
    pm.Normal("y", pt.sin(3 * x), 0.25, observed=[0.5, 0.7])


def needle() -> None:
    mu = pm.NormalMixture("mu", w=[0.5, 0.5], mu=[0.0, 5.0], sigma=[1.0, 1e-3])
    pm.Normal("y", mu, 1e3, observed=[2.0])


def of_needle(model: pm.Model, rng: np.random.Generator) -> np.ndarray:
    """Draw from the prior: beside so wide a likelihood it is the posterior."""
    inside = rng.random(DRAWS) < 0.5
    return np.where(inside, rng.normal(5, 1e-3, DRAWS), rng.normal(0, 1, DRAWS))[:, None]


def two_camps() -> None:
    mu = pm.Flat("mu")
    pm.Cauchy("y", mu, 1, observed=[-6.0, -5.0, 5.0, 6.0, 7.0])


# --- groups ---------------------------------------------------------------------------------------

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
TWENTY = np.round(stats.norm.ppf(np.linspace(0.02, 0.98, 20)) * 1.4, 2)
ALIKE = np.array([0.4, -0.2, 0.1, -0.5, 0.3, 0.0])


def normal_groups(
    y: np.ndarray, error: np.ndarray, wide: float, scale: Callable, *, centred: bool
) -> Callable[[], None]:
    """Normal groups with known errors: mu ~ N(0, wide), tau of the given prior."""

    def build() -> None:
        mu, tau = pm.Normal("mu", 0, wide), scale("tau")
        if centred:
            theta = pm.Normal("theta", mu, tau, shape=len(y))
        else:
            theta = mu + tau * pm.Normal("raw", shape=len(y))
        pm.Normal("y", theta, error, observed=y)

    return build


def of_normal_groups(
    y: np.ndarray, error: np.ndarray, wide: float, log_scale: Callable, *, centred: bool
) -> Reference:
    """Integrate mu out, put tau on a grid, draw groups from their normal."""

    def draw(model: pm.Model, rng: np.random.Generator) -> np.ndarray:
        log_tau = np.linspace(-14, 8, 40_001)
        tau = np.exp(log_tau)[:, None]
        width = error**2 + tau**2
        precision = 1 / wide**2 + (1 / width).sum(axis=1)
        middle = (y / width).sum(axis=1) / precision
        height = log_scale(tau[:, 0]) + log_tau - 0.5 * np.log(precision)
        height += -0.5 * (np.log(width) + y**2 / width).sum(axis=1) + 0.5 * precision * middle**2
        chance = np.exp(height - height.max())
        cells = rng.choice(len(tau), DRAWS, p=chance / chance.sum())
        drawn = log_tau[cells] + rng.uniform(-0.5, 0.5, DRAWS) * (log_tau[1] - log_tau[0])
        mu = rng.normal(middle[cells], precision[cells] ** -0.5)
        tau = np.exp(drawn)[:, None]
        sharp = 1 / error**2 + 1 / tau**2
        theta = rng.normal((y / error**2 + mu[:, None] / tau**2) / sharp, sharp**-0.5)
        if not centred:
            theta = (theta - mu[:, None]) / tau
        return np.column_stack([mu, drawn, theta])

    return draw


def half_normal(width: float) -> tuple[Callable, Callable]:
    return lambda name: pm.HalfNormal(name, width), lambda t: -0.5 * (t / width) ** 2


def half_cauchy(width: float) -> tuple[Callable, Callable]:
    return lambda name: pm.HalfCauchy(name, width), lambda t: -np.log1p((t / width) ** 2)


def groups(name: str, y, error, wide, scale, *, centred: bool) -> Truth:  # noqa: ANN001
    y, error = np.asarray(y, float), np.broadcast_to(error, np.shape(y)).astype(float)
    made, log_scale = scale
    return Truth(
        f"{name}, {'centred' if centred else 'not centred'}",
        "groups",
        normal_groups(y, error, wide, made, centred=centred),
        of_normal_groups(y, error, wide, log_scale, centred=centred),
    )


HITS, TRIES = np.array([3, 0, 7, 4, 9, 2, 5]), np.array([10, 8, 12, 15, 11, 9, 20])
COUNTS = np.array([0, 4, 1, 9, 2, 0, 6, 3])


def rates() -> None:
    a, b = pm.Gamma("a", 2, 1), pm.Gamma("b", 2, 1)
    p = pm.Beta("p", a, b, shape=len(HITS))
    pm.Binomial("y", TRIES, p, observed=HITS)


def of_rates(model: pm.Model, rng: np.random.Generator) -> np.ndarray:
    log_a, log_b = np.meshgrid(np.linspace(-4, 4, 500), np.linspace(-4, 4, 500), indexing="ij")
    a, b = np.exp(log_a), np.exp(log_b)
    height = 2 * log_a - a + 2 * log_b - b
    for hits, tries in zip(HITS, TRIES, strict=True):
        height += special.betaln(a + hits, b + tries - hits) - special.betaln(a, b)
    cells = _cells(height, rng)
    step = 8 / 499
    z = [g.ravel()[cells] + rng.uniform(-0.5, 0.5, DRAWS) * step for g in (log_a, log_b)]
    a, b = (np.exp(v)[:, None] for v in z)
    # the logit of a beta by two gammas: no rounding at the edges
    up = _log_gamma(a + HITS, rng)
    down = _log_gamma(b + TRIES - HITS, rng)
    return np.column_stack([*z, up - down])


def counts() -> None:
    a, b = pm.Gamma("a", 2, 1), pm.Gamma("b", 2, 1)
    rate = pm.Gamma("rate", a, b, shape=len(COUNTS))
    pm.Poisson("y", rate, observed=COUNTS)


def of_counts(model: pm.Model, rng: np.random.Generator) -> np.ndarray:
    log_a, log_b = np.meshgrid(np.linspace(-4, 4, 500), np.linspace(-5, 4, 500), indexing="ij")
    a, b = np.exp(log_a), np.exp(log_b)
    height = 2 * log_a - a + 2 * log_b - b
    for y in COUNTS:
        height += special.gammaln(a + y) - special.gammaln(a) + a * log_b - (a + y) * np.log1p(b)
    cells = _cells(height, rng)
    z = [
        g.ravel()[cells] + rng.uniform(-0.5, 0.5, DRAWS) * width / 499
        for g, width in ((log_a, 8), (log_b, 9))
    ]
    a, b = (np.exp(v)[:, None] for v in z)
    return np.column_stack([*z, _log_gamma(a + COUNTS, rng) - np.log1p(b)])


def _cells(height: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    chance = np.exp(height - height.max()).ravel()
    return rng.choice(chance.size, DRAWS, p=chance / chance.sum())


def _log_gamma(shape: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Logarithms of gamma draws: small shapes by a power of a uniform one."""
    return np.log(rng.gamma(shape + 1)) + np.log(rng.uniform(size=shape.shape)) / shape


# --- vague and improper ---------------------------------------------------------------------------

FEW = np.array([1.2, -0.4, 0.7, 2.1, 0.1])


def vague_precision() -> None:
    mu, precision = pm.Normal("mu", 0, 1000), pm.Gamma("precision", 0.001, 0.001)
    pm.Normal("y", mu, tau=precision, observed=FEW)


def vague_variance() -> None:
    mu, variance = pm.Flat("mu"), pm.InverseGamma("variance", 0.001, 0.001)
    pm.Normal("y", mu, pt.sqrt(variance), observed=FEW)


def improper() -> None:
    mu, sigma = pm.Flat("mu"), pm.HalfFlat("sigma")
    pm.Normal("y", mu, sigma, observed=FEW)


def wide_logit() -> None:
    a, b = pm.Normal("a", 0, 1000), pm.Normal("b", 0, 1000)
    x = np.array([-2.0, -1.5, -1, -0.5, 0, 0.2, 0.5, 1, 1.5, 2])
    pm.Bernoulli("y", logit_p=a + b * x, observed=[0, 0, 1, 0, 0, 1, 0, 1, 1, 1])


def separated() -> None:
    a, b = pm.Normal("a", 0, 10), pm.Normal("b", 0, 10)
    x = np.array([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0])
    pm.Bernoulli("y", logit_p=a + b * x, observed=[0, 0, 0, 1, 1, 1])


def wide_uniform() -> None:
    mu, sigma = pm.Uniform("mu", -1000, 1000), pm.Uniform("sigma", 0, 1000)
    pm.Normal("y", mu, sigma, observed=FEW)


# --- heavy tails ----------------------------------------------------------------------------------


def one_student() -> None:
    mu = pm.StudentT("mu", 4, mu=0, sigma=1)
    pm.StudentT("y", 4, mu=mu, sigma=1, observed=[3.0])


def far_student() -> None:
    mu = pm.StudentT("mu", 3, mu=0, sigma=1)
    pm.StudentT("y", 3, mu=mu, sigma=1, observed=[12.0])


def cauchy_scale() -> None:
    tau = pm.HalfCauchy("tau", 1)
    pm.Normal("y", 0, tau, observed=[0.3, -1.4])


def horseshoe() -> None:
    shrink = pm.HalfCauchy("shrink", 1)
    beta = pm.Normal("beta", 0, shrink)
    pm.Normal("y", beta, 1, observed=[1.5])


def cauchy_line() -> None:
    a, b = pm.Cauchy("a", 0, 2.5), pm.Cauchy("b", 0, 2.5)
    x = np.array([-1.0, 0, 1, 2])
    pm.Cauchy("y", a + b * x, 0.5, observed=[-1.2, 0.3, 0.9, 8.0])


def student_freedom() -> None:
    nu, mu = pm.Gamma("nu", 2, 0.1), pm.Normal("mu", 0, 10)
    pm.StudentT("y", nu, mu=mu, sigma=1, observed=[0.1, -0.5, 0.8, 7.0, 0.2, -0.9])


# --- edges, skew, ridges --------------------------------------------------------------------------


def endpoint() -> None:
    theta = pm.Pareto("theta", 1, 1)
    pm.Uniform("y", 0, theta, observed=[0.4, 2.2, 1.7])


def piled_up() -> None:
    p = pm.Uniform("p", 0, 1)
    pm.Binomial("y", 30, p, observed=0)


def near_zero() -> None:
    effect = pm.HalfNormal("effect", 1)
    pm.Normal("y", effect, 0.5, observed=[-0.6, -0.2, -0.9])


def shape_and_rate() -> None:
    a, b = pm.Exponential("a", 0.1), pm.Exponential("b", 0.1)
    pm.Gamma("y", a, b, observed=[0.1, 2.3, 0.6, 5.5])


def ridge() -> None:
    a, b = pm.Normal("a", 0, 10), pm.Normal("b", 0, 10)
    pm.Normal("y", a + b, 0.05, observed=[1.0, 1.1])


def banana() -> None:
    x = pm.Normal("x")
    y = pm.Normal("y", x**2, 0.1)
    pm.Normal("seen", y, 1, observed=[1.0])


def funnel() -> None:
    v = pm.Normal("v", 0, 3)
    pm.Normal("x", 0, pt.exp(v / 2))
    pm.Potential("nothing", pt.zeros(()))


def of_funnel(model: pm.Model, rng: np.random.Generator) -> np.ndarray:
    v = rng.normal(0, 3, DRAWS)
    return np.column_stack([v, rng.normal(0, np.exp(v / 2))])


def line() -> None:
    a, b, s = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2), pm.HalfNormal("s", 1)
    x = np.linspace(-1, 1, 9)
    pm.Normal("y", a + b * x, s, observed=[-0.9, -1, -0.2, -0.4, 0.3, 0.1, 0.9, 0.5, 1.4])


def angle() -> None:
    direction = pm.VonMises("direction", 0, 0.5)
    pm.VonMises("y", direction, 2.0, observed=[3.0, -3.0, 2.7])


def exposure() -> None:
    rate = pm.Gamma("rate", 1, 1)
    pm.Poisson("y", rate * np.array([1.0, 10, 100]), observed=[0, 3, 41])


def waiting() -> None:
    k, scale = pm.HalfNormal("k", 2), pm.HalfNormal("scale", 5)
    pm.Weibull("y", k, scale, observed=[1.1, 0.2, 3.4, 2.2, 0.9])


def _grid(build: Callable[[], None], kind: str, *bounds: tuple[float, float]) -> Truth:
    return Truth(build.__name__.replace("_", " "), kind, build, on_a_grid(*bounds))


MODES, VAGUE, HEAVY, PLAIN = "several modes", "vague or improper", "heavy tails", "edges and skew"
_LOG = (-12.0, 12.0)

TRUTHS = {
    truth.name: truth
    for truth in (
        _grid(sign, MODES, (-8, 8)),
        _grid(square, MODES, (-5, 5)),
        _grid(two_beliefs, MODES, (-8, 8)),
        _grid(narrow_and_wide, MODES, (-8, 8)),
        _grid(switched_labels, MODES, (-8, 8), (-8, 8)),
        _grid(unequal_labels, MODES, (-10, 10), (-10, 10)),
        _grid(four_squares, MODES, (-4, 4), (-4, 4)),
        _grid(product, MODES, (-6, 6), (-6, 6)),
        _grid(ring, MODES, (-6, 6), (-6, 6)),
        _grid(wave, MODES, (-6, 6)),
        Truth("needle", MODES, needle, of_needle),
        _grid(two_camps, MODES, (-300, 300)),
        groups("schools", EFFECTS, ERRORS, 20.0, half_normal(10.0), centred=True),
        groups("schools", EFFECTS, ERRORS, 20.0, half_normal(10.0), centred=False),
        groups("twenty groups", TWENTY, 1.0, 5.0, half_normal(2.0), centred=True),
        groups("twenty groups", TWENTY, 1.0, 5.0, half_normal(2.0), centred=False),
        groups("groups alike", ALIKE, 1.0, 5.0, half_normal(1.0), centred=True),
        groups("groups alike", ALIKE, 1.0, 5.0, half_normal(1.0), centred=False),
        groups("vague spread", EFFECTS, ERRORS, 100.0, half_cauchy(25.0), centred=True),
        groups("vague spread", EFFECTS, ERRORS, 100.0, half_cauchy(25.0), centred=False),
        groups("three groups", [1.0, 4.0, -2.0], 0.5, 10.0, half_cauchy(5.0), centred=True),
        Truth("rates", "groups", rates, of_rates),
        Truth("counts", "groups", counts, of_counts),
        _grid(vague_precision, VAGUE, (-30, 30), (-15, 10)),
        _grid(vague_variance, VAGUE, (-30, 30), (-10, 15)),
        _grid(improper, VAGUE, (-60, 60), (-8, 12)),
        _grid(wide_logit, VAGUE, (-40, 40), (-20, 60)),
        _grid(separated, VAGUE, (-60, 60), (-10, 80)),
        _grid(wide_uniform, VAGUE, (-0.05, 0.05), (-16, 0)),
        _grid(one_student, HEAVY, (-200, 200)),
        _grid(far_student, HEAVY, (-300, 300)),
        _grid(cauchy_scale, HEAVY, (-10, 25)),
        _grid(horseshoe, HEAVY, (-25, 25), (-12, 12)),
        _grid(cauchy_line, HEAVY, (-40, 40), (-40, 40)),
        _grid(student_freedom, HEAVY, (-6, 8), (-20, 20)),
        _grid(endpoint, PLAIN, (-25, 15)),
        _grid(piled_up, PLAIN, (-40, 10)),
        _grid(near_zero, PLAIN, (-40, 5)),
        _grid(shape_and_rate, PLAIN, (-8, 6), (-12, 6)),
        _grid(ridge, PLAIN, (-50, 50), (-50, 50)),
        _grid(banana, PLAIN, (-4, 4), (-2, 8)),
        Truth("funnel", PLAIN, funnel, of_funnel),
        _grid(line, PLAIN, (-5, 5), (-5, 5), (-5, 4)),
        _grid(angle, PLAIN, (-np.pi, np.pi)),
        _grid(exposure, PLAIN, (-8, 4)),
        _grid(waiting, PLAIN, (-5, 4), (-5, 6)),
    )
}
