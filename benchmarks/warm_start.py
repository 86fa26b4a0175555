"""nutpie from a warm start against nutpie from a cold one, on the same datasets in one run.

Cold: nutpie's defaults, 400 tuning draws in each of 4 chains. Warm: `posterior.warm_start`, its
metric and its starting points, and few tuning draws, which find the step size alone. Both keep
250 draws a chain. Effective draws are the least over all parameters, by ArviZ; gradient evaluations
are counted with those of tuning. Compilation is left out on both sides, and what the warm start
itself takes has a column.
"""

import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import arviz as az
import numpy as np
import nutpie
import pymc as pm
from refinement_models import CASES, Case
from results import Table, parser, write

import pmcl
from pmcl.reference.checks import check_datasets
from pmcl.reference.shared_model import share_data

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
from level_models import sleep  # noqa: E402

CHAINS, DRAWS, COLD = 4, 250, 400


def sleep_study(n: int) -> Case:
    """Intercepts and slopes of 18 subjects, not centred: 41 parameters."""
    case = sleep(18)
    rng = np.random.default_rng(5)
    y = np.stack([case.simulate(rng)["y"] for _ in range(n)])
    return Case(case.build(False), {"y": y})


MODELS = {
    "linear regression": (CASES["linear regression"], {"X": pm.Normal.dist(0, 1)}),
    "Wald race": (CASES["Wald race"], None),
    "sleep study": (sleep_study, None),
    "Lotka-Volterra": (CASES["Lotka-Volterra"], None),
}


class Run(NamedTuple):
    """What one call of nutpie gave."""

    tuning: float  # gradient evaluations while tuning
    after: float  # those after
    seconds: float
    effective: float  # draws, the least over parameters
    rhat: float


def sampled(compiled: object, tune: int, names: list[str], back: object = None) -> Run:
    """Sample by nutpie, timed without the making of labelled results."""
    given = {"draws": DRAWS, "tune": tune, "chains": CHAINS, "seed": 1, "progress_bar": False}
    begin = time.perf_counter()
    nutpie.sample(compiled, return_raw_trace=True, **given)
    seconds = time.perf_counter() - begin
    trace = nutpie.sample(compiled, **given)
    tree = trace if back is None else back(trace)
    draws = tree["posterior"].to_dataset()[names]
    steps = [
        float(tree[group]["n_steps"].sum()) for group in ("warmup_sample_stats", "sample_stats")
    ]
    effective = min(float(v.min()) for v in az.ess(draws).values())
    rhat = max(float(v.max()) for v in az.rhat(draws).values())
    return Run(*steps, seconds, effective, rhat)


def run(name: str, datasets: int, tune: int) -> dict[str, float]:
    """Medians over the datasets of one model, cold and warm."""
    make, covariates = MODELS[name]
    model, data = make(datasets)
    posterior = pmcl.fit_amortized(
        model, covariates=covariates, steps=300, simulations=1024, random_seed=0, progressbar=False
    )
    posterior.warm_start({k: v[:2] for k, v in data.items()}, random_seed=0)  # compile
    begin = time.perf_counter()
    starts = posterior.warm_start(data, chains=CHAINS, random_seed=0)
    preparing = (time.perf_counter() - begin) / datasets
    task = pmcl.as_task(data, posterior.layout)
    checked = check_datasets(model, [task.dataset(i) for i in range(datasets)], task.names)
    shared = share_data(model, checked.arrays)
    shared.set(checked.arrays[0], checked.lengths[0])
    plain = nutpie.compile_pymc_model(shared.model)
    read = {v.name for v in plain.shared_var_keys}
    names = [i.name for i in posterior.compiled.free]
    cold, warm = [], []
    for i, start in enumerate(starts.values()):
        values = shared.updates(checked.arrays[i], checked.lengths[i])
        ready = plain.with_data(**{v.name: x for v, x in values.items() if v.name in read})
        cold.append(sampled(ready, COLD, names))
        warm.append(sampled(start.nutpie(), tune, names, start.posterior))
    a, b = (Run(*np.median(np.asarray(r), axis=0)) for r in (cold, warm))
    return {
        "stand": sum(s.warning == "" for s in starts.values()),
        "milliseconds of the warm start": 1e3 * preparing,
        "gradients of tuning, cold": a.tuning,
        "gradients of tuning, warm": b.tuning,
        "gradients an effective draw, cold": (a.tuning + a.after) / a.effective,
        "gradients an effective draw, warm": (b.tuning + b.after) / b.effective,
        "effective draws a second, cold": a.effective / a.seconds,
        "effective draws a second, warm": b.effective / b.seconds,
        "worst r-hat, cold": max(r.rhat for r in cold),
        "worst r-hat, warm": max(r.rhat for r in warm),
    }


def main() -> None:
    """Compare both for every model, and write the figures."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--datasets", type=int, default=8)
    arguments.add_argument("--tune", type=int, default=50)
    arguments.add_argument("--models", nargs="*", default=list(MODELS))
    given = arguments.parse_args()
    warnings.simplefilter("ignore")
    rows: dict[str, dict[str, float]] = {}
    for name in given.models:
        rows[name] = run(name, given.datasets, given.tune)
        print(name, rows[name], flush=True)
        table = Table(
            f"nutpie with {COLD} tuning draws, and with {given.tune} from a warm start; medians "
            f"over {given.datasets} datasets (r-hat: the worst)",
            ["model", *rows[name]],
            [[n, *row.values()] for n, row in rows.items()],
        )
        about = {"datasets": given.datasets, "tune": given.tune, "models": rows}
        write("warm_start", given.out, about, table)


if __name__ == "__main__":
    main()
