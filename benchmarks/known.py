"""Posteriors where a parameter is known: by the density, or by the network's conditional.

A flow of couplings has no conditional of some coordinates in closed form. What is cheap is that of
a normal with the moments of its draws (here a t with 5 degrees of freedom, so that weights are
bounded). `sample(given=)` begins there, and searches and refines by the density of what is left.
Efficiency is that of importance weights; the known value is the 80 % quantile of the parameter's
posterior.
"""

import time
import warnings
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
from refinement_models import CASES
from results import Table, parser, write
from scipy import stats

import pmcl
from pmcl.amortized.given import _network_draws
from pmcl.draws.handed import z_of
from pmcl.metrics import importance_diagnostics
from pmcl.refinement.known import conditioned
from pmcl.runtime import precision

MODELS = {
    "linear regression": ("sigma", {"X": pm.Normal.dist(0, 1)}),
    "Wald race": ("t0", None),
}
DRAWS = 1000


def by_density(
    posterior: pmcl.AmortizedPosterior, data: Mapping[str, np.ndarray], given: dict
) -> tuple[np.ndarray, float]:
    """Efficiency of each dataset, and seconds a dataset after compilation."""
    for seed in (1, 2):
        begin = time.perf_counter()
        tree = posterior.sample(data, DRAWS, given=given, fallback=None, random_seed=seed)
        seconds = time.perf_counter() - begin
    found = tree["dataset_stats"]["efficiency"].values
    return found, seconds / len(found)


def by_network(
    posterior: pmcl.AmortizedPosterior, data: Mapping[str, np.ndarray], given: dict
) -> np.ndarray:
    """Efficiency of the conditional of a normal of the network's draws."""
    task, rng, found = posterior.sampler.checked(data), np.random.default_rng(0), []
    with precision.scope():
        drawn = _network_draws(posterior.sampler, task, 1)
        known = conditioned(posterior.compiled, task, given)
        moved = known.starts(np.moveaxis(z_of(posterior.compiled, drawn, "draws")[0], 0, 1))
        density = jax.jit(jax.vmap(known.compiled.log_joint, in_axes=(0, None)))
        for i, draws in enumerate(moved):
            dim = draws.shape[1]
            scale = 0.7 * np.cov(draws.T).reshape(dim, dim)
            proposal = stats.multivariate_t(np.median(draws, axis=0), scale, df=5)
            z = proposal.rvs(DRAWS, random_state=rng).reshape(DRAWS, dim)
            values = {k: jnp.asarray(v) for k, v in known.task.dataset(i).items()}
            log_weight = np.asarray(density(jnp.asarray(z), values)) - proposal.logpdf(z)
            found.append(float(importance_diagnostics(log_weight[None]).efficiency[0]))
    return np.asarray(found)


def main() -> None:
    """Compare both, and write the figures."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--datasets", type=int, default=12)
    given = arguments.parse_args()
    warnings.simplefilter("ignore")
    rows: dict[str, dict[str, float]] = {}
    for name, (known, covariates) in MODELS.items():
        case = CASES[name](given.datasets)
        posterior = pmcl.fit_amortized(
            case.model, covariates=covariates, steps=300, simulations=1024, random_seed=0,
            progressbar=False,
        )  # fmt: skip
        draws = posterior.sample(case.data, DRAWS, fallback=None, random_seed=1)["posterior"]
        value = {known: draws[known].quantile(0.8, dim=("chain", "draw")).values}
        density, seconds = by_density(posterior, case.data, value)
        network = by_network(posterior, case.data, value)
        rows[f"{name}, {known} known"] = {
            "efficiency by the density (least)": f"{np.median(density):.2f} ({density.min():.2f})",
            "by the network's normal (least)": f"{np.median(network):.2f} ({network.min():.2f})",
            "milliseconds a dataset by the density": round(1e3 * seconds),
        }
    table = Table(
        f"{DRAWS:,} draws of each of {given.datasets} datasets",
        ["model", *next(iter(rows.values()))],
        [[n, *row.values()] for n, row in rows.items()],
    )
    write("known", given.out, {"datasets": given.datasets, "models": rows}, table)


if __name__ == "__main__":
    main()
