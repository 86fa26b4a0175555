"""The benchmark's tasks as PyMC models: are they the ones that the reference draws are of?"""

import jax
import numpy as np
import pytest
import sbibm_tasks

from pmcl.compile import compile_model, precision


@pytest.mark.parametrize("name", ["gaussian_linear", "bernoulli_glm", "sir"])
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
