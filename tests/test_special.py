"""Derivatives of special functions against differences of SciPy's values."""

from collections.abc import Callable

import jax
import numpy as np
import pytest
from scipy import special as scipy_special

from pmcl.compile import precision
from pmcl.compile.special import betainc


def derivative(function: Callable[[float], float], at: float) -> float:
    """Central differences, extrapolated to no step (Richardson)."""
    steps = 1e-3 * at / 2.0 ** np.arange(4)
    found = [(function(at + h) - function(at - h)) / (2 * h) for h in steps]
    for j in range(1, 4):
        found = [(4**j * b - a) / (4**j - 1) for a, b in zip(found, found[1:], strict=False)]
    return found[0]


@pytest.mark.parametrize("seed", range(3))
def test_incomplete_beta_is_differentiable_in_all_its_arguments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = np.exp(rng.uniform(-2.5, 5, (2, 40)))
    x = rng.beta(a, b).clip(1e-12, 1 - 1e-12)
    with precision.scope():
        value = betainc(a, b, x)
        found = jax.vmap(jax.grad(betainc, argnums=(0, 1, 2)))(a, b, x)
    np.testing.assert_allclose(value, scipy_special.betainc(a, b, x), rtol=1e-10)
    for i in range(len(a)):
        by_a = derivative(lambda s, i=i: scipy_special.betainc(s, b[i], x[i]), a[i])
        by_b = derivative(lambda s, i=i: scipy_special.betainc(a[i], s, x[i]), b[i])
        np.testing.assert_allclose(found[0][i], by_a, rtol=1e-7, atol=1e-10)
        np.testing.assert_allclose(found[1][i], by_b, rtol=1e-7, atol=1e-10)
    density = np.exp((a - 1) * np.log(x) + (b - 1) * np.log1p(-x) - scipy_special.betaln(a, b))
    np.testing.assert_allclose(found[2], density, rtol=1e-9)


def test_incomplete_beta_at_the_ends_of_its_range() -> None:
    with precision.scope():
        for x in (0.0, 1.0):
            assert float(betainc(2.0, 3.0, x)) == x
            assert [float(g) for g in jax.grad(betainc, (0, 1, 2))(2.0, 3.0, x)] == [0.0] * 3
