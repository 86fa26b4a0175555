"""Blocks integrated out, against nutpie, cold and warm, on one dataset of each model in one run.

`pmcl.refine` integrates crossed effects, walks, volatilities and Gaussian processes out, exactly
where rows are normal, else by their own curvature with a correction by draws. nutpie has four
chains of 400 tuning and 250 kept draws on all cores. Cold: the first call, which compiles; warm:
the best of the next two. Apart: the largest difference of a global parameter's means, in units of
its standard deviation by nutpie.
"""

import time
from collections.abc import Callable

import numpy as np
import pymc as pm
from results import Table, parser, write

import pmcl

PERSONS, ITEMS = 40, 35
WHO, WHAT = np.divmod(np.arange(PERSONS * ITEMS), ITEMS)


def crossed() -> tuple[np.ndarray, np.ndarray]:
    """Draw effects of persons and items."""
    rng = np.random.default_rng(0)
    return rng.normal(0, 1.2, PERSONS)[WHO], rng.normal(0, 0.8, ITEMS)[WHAT]


def answers(normal: bool) -> pm.Model:
    """Answers of 40 persons to 35 items: scores, or right and wrong."""
    person, item = crossed()
    rng = np.random.default_rng(1)
    coords = {"person": range(PERSONS), "item": range(ITEMS), "answer": range(len(WHO))}
    with pm.Model(coords=coords) as model:
        mean = pm.Normal("mean", 0, 1.5)
        of_person, of_item = pm.HalfNormal("of person", 1), pm.HalfNormal("of item", 1)
        ability = pm.Normal("ability", 0, 1, dims="person")
        ease = pm.Normal("ease", 0, 1, dims="item")
        eta = mean + of_person * ability[WHO] + of_item * ease[WHAT]
        truth = 0.3 + person + item
        if normal:
            y = rng.normal(truth, 1.0)
            pm.Normal("y", eta, pm.HalfNormal("noise", 1), observed=y, dims="answer")
        else:
            y = rng.binomial(1, 1 / (1 + np.exp(-truth)))
            pm.Bernoulli("y", logit_p=eta, observed=y, dims="answer")
    return model


def counts() -> pm.Model:
    """A hundred counts, of which the log rate is a walk."""
    rng = np.random.default_rng(2)
    y = rng.poisson(np.exp(1 + np.cumsum(rng.normal(0, 0.2, 100))))
    with pm.Model(coords={"time": range(100)}) as model:
        step, start = pm.HalfNormal("step", 0.5), pm.Normal.dist(0, 2)
        level = pm.GaussianRandomWalk("level", sigma=step, init_dist=start, dims="time")
        pm.Poisson("y", pm.math.exp(level), observed=y, dims="time")
    return model


def volatility() -> pm.Model:
    """Stochastic volatility of 180 days, a walk."""
    rng = np.random.default_rng(3)
    y = rng.normal(0, np.exp(np.cumsum(rng.normal(0, 0.15, 180)) / 2 - 0.5))
    with pm.Model(coords={"time": range(180)}) as model:
        step, start = pm.Exponential("step", 10), pm.Normal.dist(0, 2)
        level = pm.GaussianRandomWalk("level", sigma=step, init_dist=start, dims="time")
        pm.Normal("y", 0, pm.math.exp(level / 2), observed=y, dims="time")
    return model


def classified() -> pm.Model:
    """Sixty binary rows along a Gaussian process."""
    rng = np.random.default_rng(4)
    x = np.sort(rng.uniform(0, 10, 60))
    y = rng.binomial(1, 1 / (1 + np.exp(-2 * np.sin(x))))
    with pm.Model(coords={"row": range(60)}) as model:
        length, size = pm.InverseGamma("length", 5, 5), pm.HalfNormal("size", 2)
        process = pm.gp.Latent(cov_func=size**2 * pm.gp.cov.Matern52(1, ls=length))
        pm.Bernoulli("y", logit_p=process.prior("f", X=x[:, None]), observed=y, dims="row")
    return model


MODELS: dict[str, Callable[[], pm.Model]] = {
    "crossed, normal, 75": lambda: answers(normal=True),
    "crossed, binary, 75": lambda: answers(normal=False),
    "counts along a walk, 100": counts,
    "stochastic volatility, 180": volatility,
    "Gaussian process, binary, 60": classified,
}


def timed(function: Callable) -> tuple[float, float, object]:
    """Seconds of the first call and of the best of two more, and what the last returns."""
    spent = []
    for _ in range(3):
        begin = time.perf_counter()
        found = function()
        spent.append(time.perf_counter() - begin)
    return spent[0], min(spent[1:]), found


def run(model: pm.Model) -> dict[str, float]:
    """Seconds of both sides, and what comes out."""
    quiet = {"random_seed": 0, "progressbar": False}
    begin = time.perf_counter()
    compiled = pmcl.compile_model(model)
    compiling = time.perf_counter() - begin
    cold, warm, ours = timed(lambda: pmcl.refine(compiled, **quiet))
    nuts = lambda: pmcl.sample_reference(model, draws=250, tune=400, chains=4, **quiet)  # noqa: E731
    begin = time.perf_counter()
    reference = nuts()
    cold_nuts = time.perf_counter() - begin
    warm_nuts = min(float(nuts()["dataset_stats"]["seconds"].sum()) for _ in range(2))
    stats = ours["dataset_stats"].to_dataset().isel(dataset=0)
    means = []
    for name, there in reference["posterior"].data_vars.items():
        if set(there.dims) == {"chain", "draw", "dataset"}:
            here = ours["posterior"][name]
            means.append(abs(float(here.mean()) - float(there.mean())) / float(there.std()))
    return {
        "refine, cold": compiling + cold,
        "nutpie, cold": cold_nuts,
        "refine, warm": warm,
        "nutpie, warm": warm_nuts,
        "efficiency": float(stats["efficiency"]),
        "k-hat": float(stats["khat"]),
        "apart": max(means),
        "log evidence": float(stats["log_evidence"]),
    }


def main() -> None:
    """Time both sides of every model."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--models", nargs="*", default=list(MODELS))
    given = arguments.parse_args()
    rows = {name: run(MODELS[name]()) for name in given.models}
    columns = ["model, entries", *next(iter(rows.values()))]
    table = Table("Seconds", columns, [[name, *row.values()] for name, row in rows.items()])
    write("blocks", given.out, {"models": rows}, table)


if __name__ == "__main__":
    main()
