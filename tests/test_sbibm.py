"""The benchmark's tasks as PyMC models: are they the ones that the reference draws are of?"""

import jax
import numpy as np
import pytest
import sbibm_tasks
from scipy import stats

from pmcl.compile import compile_model
from pmcl.runtime import precision

SMOOTH = [name for name in sbibm_tasks.BENCHMARKS if name != "two_moons"]  # which has an edge


@pytest.mark.parametrize("name", SMOOTH)
def test_the_score_is_zero_on_average_over_reference_draws(name, data_folder):
    """Of any smooth density the gradient of its logarithm has the mean 0."""
    task = sbibm_tasks.BENCHMARKS[name]
    compiled = compile_model(task.model())
    x = task.observed()["x"][0]
    draws = task.reference(1)[:2000]
    by_name = {"beta": draws[:, 0], "gamma": draws[:, 1]} if name == "sir" else {"theta": draws}
    with precision.scope():
        z = jax.vmap(compiled.unconstrain)(by_name)
        score = np.asarray(
            jax.jit(jax.vmap(jax.grad(lambda u: compiled.log_joint(u, {"x": x}))))(z)
        )
    error = score.std(axis=0) / np.sqrt(len(score))
    assert (np.abs(score.mean(axis=0)) < 5 * error).all()
    # And by Stein's identity E[z score] = -1.
    each = (np.asarray(z) - np.asarray(z).mean(axis=0)) * score
    np.testing.assert_allclose(each.mean(axis=0), -1, atol=6 * each.std() / np.sqrt(len(each)))


def test_two_moons_has_the_density_of_its_simulator():
    """Of draws at one theta, the radius is normal and the angle uniform to the right."""
    task = sbibm_tasks.BENCHMARKS["two_moons"]
    compiled = compile_model(task.model())
    theta = np.array([0.3, -0.4])
    centre = np.array([-abs(theta.sum()) / 2**0.5 + 0.25, (theta[1] - theta[0]) / 2**0.5])
    radius, angle = np.array([0.08, 0.1, 0.13, 0.1]), np.array([-1.2, 0.0, 0.7, 2.0])
    x = centre + radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    expected = stats.norm(0.1, 0.01).logpdf(radius) - np.log(np.pi * radius)
    expected[3] = -np.inf  # to the left
    with precision.scope():
        z = compiled.unconstrain({"theta": jax.numpy.asarray(theta)})
        found = [compiled.log_likelihood_terms(z, {"x": one})["x"].sum() for one in x]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_two_moons_reference_draws_lie_where_the_density_is_not_zero(data_folder):
    task = sbibm_tasks.BENCHMARKS["two_moons"]
    compiled = compile_model(task.model())
    draws, data = task.reference(1)[:500], {"x": task.observed()["x"][0]}
    with precision.scope():
        z = jax.vmap(compiled.unconstrain)({"theta": draws})
        values = jax.vmap(lambda u: compiled.log_likelihood_terms(u, data)["x"].sum())(z)
    assert np.isfinite(values).all()
