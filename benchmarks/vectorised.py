"""A hundred datasets that fell to NUTS: all in one program, against nutpie one by one.

Both begin at the same draws, those of refinement, and walk in their coordinates: 500 tuning draws
in each of 4 chains, then 500 of which every second is kept, target acceptance 0.9. Compilation has
columns of its own. Apart: MMD squared of both samplers' draws, mean over datasets; beside it the
same of nutpie with two seeds, of the first twenty.
"""

import time
import warnings
from collections.abc import Callable

import numpy as np
import pymc as pm
from refinement_models import CASES, Case
from results import Table, parser, write

import pmcl
from pmcl.compile import Density, compile_model
from pmcl.data.reading import task_of
from pmcl.draws.results import flat_z
from pmcl.metrics.discrepancy import posterior_discrepancy
from pmcl.refinement.fallback import Fallen, by_nuts, together
from pmcl.runtime import precision

DRAWS, NULL = 1000, 20


def centred_groups(n: int) -> Case:
    """Eight groups with known errors, centred: a funnel that is not integrated out."""
    rng = np.random.default_rng(1)
    error = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    with pm.Model(coords={"school": range(8)}) as model:
        mu = pm.Normal("mu", 0, 20)
        tau = pm.HalfNormal("tau", 10)
        theta = pm.Normal("theta", mu, tau, dims="school")
        pm.Normal("y", theta, error, observed=np.zeros(8), dims="school")
    mu, tau = rng.normal(0, 20, (n, 1)), np.abs(rng.normal(0, 10, (n, 1)))
    return Case(model, {"y": rng.normal(mu + tau * rng.normal(size=(n, 8)), error)})


def bent_regression(n: int) -> Case:
    """A slope near the square of the intercept, from ten noisy rows."""
    rng = np.random.default_rng(2)
    x = np.linspace(-1, 1, 10)
    with pm.Model(coords={"row": range(10)}) as model:
        a = pm.Normal("a")
        b = pm.Normal("b", a**2, 0.1)
        sd = pm.HalfNormal("sd", 2)
        pm.Normal("y", 0.2 * a + b * x, sd, observed=np.zeros(10), dims="row")
    a = rng.normal(size=(n, 1))
    b, sd = rng.normal(a**2, 0.1), np.abs(rng.normal(0, 2, (n, 1)))
    return Case(model, {"y": rng.normal(0.2 * a + b * x, sd)})


MODELS: dict[str, Callable[[int], Case]] = {
    "eight groups, centred": centred_groups,
    "bent regression": bent_regression,
    "Wald race": CASES["Wald race"],
}


def timed(sample: Callable[[np.ndarray, int], Fallen], which: np.ndarray, seed: int = 0) -> tuple:
    """Draws of some datasets, and the seconds that they took."""
    begin = time.perf_counter()
    found = sample(which, seed)
    return found, time.perf_counter() - begin


def apart(one: Fallen, other: Fallen, number: int) -> float:
    """MMD squared, mean over the first datasets."""
    pairs = zip(one.drawn.z[:number], other.drawn.z[:number], strict=True)
    rng = np.random.default_rng(0)
    return float(np.mean([posterior_discrepancy(a, b, rng=rng).mmd2 for a, b in pairs]))


def run(name: str, datasets: int) -> dict[str, float]:
    """Times and accuracy of both for one model."""
    model, data = MODELS[name](datasets)
    compiled = compile_model(
        model, covariates=[k for k in data if k in model.named_vars and k != "y"]
    )
    refined = pmcl.refine(
        compiled, data, levels=False, fallback=None, random_seed=0, progressbar=False
    )
    z = np.moveaxis(flat_z(compiled, refined)[0], 1, 0)
    task = task_of(compiled, data)
    density = Density(compiled, task.layout.row)
    rest = {"draws": DRAWS, "progressbar": False}

    def vectorised(which: np.ndarray, seed: int) -> Fallen:
        return together(density, task, z[which], which, seed=seed, **rest)

    def nutpie(which: np.ndarray, seed: int) -> Fallen:
        return by_nuts(compiled, task, z[which], which, seed=seed, **rest)

    few, every = np.arange(1), np.arange(datasets)
    with precision.scope():
        (_, first), (_, first_nutpie) = timed(vectorised, few), timed(nutpie, few)
        (found, seconds), (other, seconds_nutpie) = timed(vectorised, every), timed(nutpie, every)
        again, _ = timed(nutpie, np.arange(min(NULL, datasets)), 1)
    return {
        "parameters": compiled.dim,
        "first dataset, s": first,
        "first dataset, nutpie, s": first_nutpie,
        "ms a dataset": 1e3 * seconds / datasets,
        "ms a dataset, nutpie": 1e3 * seconds_nutpie / datasets,
        "gradients": float(np.median(found.gradients)),
        "gradients, nutpie": float(np.median(other.gradients)),
        "least ess, median": float(np.median(found.ess)),
        "least ess, nutpie": float(np.median(other.ess)),
        "said to be doubtful": int(sum(w != "" for w in found.warning)),
        "doubtful, nutpie": int(sum(w != "" for w in other.warning)),
        "apart": apart(found, other, datasets),
        "apart, nutpie twice": apart(other, again, min(NULL, datasets)),
    }


def main() -> None:
    """Compare both for every model, and write the figures."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--datasets", type=int, default=100)
    arguments.add_argument("--models", nargs="*", default=list(MODELS))
    given = arguments.parse_args()
    warnings.simplefilter("ignore")
    rows: dict[str, dict[str, float]] = {}
    for name in given.models:
        rows[name] = run(name, given.datasets)
        print(name, rows[name], flush=True)
        table = Table(
            f"NUTS of {given.datasets} datasets in one program, and by nutpie one by one",
            ["", *rows],
            [[k, *(row[k] for row in rows.values())] for k in rows[name]],
        )
        write("vectorised", given.out, {"datasets": given.datasets, "models": rows}, table)


if __name__ == "__main__":
    main()
