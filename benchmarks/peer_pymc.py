"""One dataset after another, as a PyMC user does it, at the problems of `peer_problem`.

NUTS of PyMC, nutpie and blackjax, ADVI, pathfinder and ADVI of pymc-extras (whose environment has
to have it), and `pmcl.refine`, which needs no network. PyMC compiles for each dataset, nutpie and
pmcl once for all. A thousand draws each: 4 chains of 250, with each sampler's own number to tune.
"""

import argparse
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from peer_clock import now

BEGIN = now()
import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
import xarray as xr  # noqa: E402
from peer_problem import ROWS_OF_A_GROUP, peak_gib, say  # noqa: E402

IMPORTED = now() - BEGIN
CHAINS = 4

type Arrays = dict[str, np.ndarray]


def model(data: Arrays, *, placeholders: bool = False) -> pm.Model:
    """The regression, or the groups where there is no `X`; data as `pm.Data`.

    With `placeholders` the observed values are plain zeros, which pmcl's data take the place of.
    """
    y = data["y"].astype(float)
    with pm.Model(coords={"obs": range(len(y))}) as built:
        seen = np.zeros(len(y)) if placeholders else pm.Data("seen", y)
        if "X" in data:
            X = pm.Data("X", data["X"].astype(float))
            mean = pm.Normal("alpha") + X @ pm.Normal("beta", shape=data["X"].shape[1])
        else:
            group = np.repeat(np.arange(len(y) // ROWS_OF_A_GROUP), ROWS_OF_A_GROUP)
            built.add_coord("group", range(group[-1] + 1))
            mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
            if placeholders:  # either form is the same to pmcl
                mean = pm.Normal("a", mu, tau, dims="group")[group]
            else:  # not centred, which samplers like better with few rows
                mean = mu + tau * pm.Normal("a_raw", dims="group")[group]
        pm.Normal("y", mean, pm.HalfNormal("sigma"), observed=seen, dims="obs")
    return built


def flat(posterior: xr.Dataset) -> np.ndarray:
    """Draws of shape (draw, dim): coefficients and log scale, or (mu, log tau, log sigma)."""
    found = posterior.stack(sample=("chain", "draw")).transpose("sample", ...)
    if "beta" in found:
        columns = [found["alpha"].values[:, None], found["beta"].values]
    else:
        columns = [found["mu"].values[:, None], np.log(found["tau"].values)[:, None]]
    return np.concatenate([*columns, np.log(found["sigma"].values)[:, None]], axis=1)


def nuts(data: Arrays, draws: int) -> np.ndarray:
    """`pm.sample`; 1,000 steps to tune, its default."""
    with model(data):
        tree = pm.sample(
            draws // CHAINS, tune=1000, chains=CHAINS, nuts_sampler="pymc", random_seed=0,
            progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
    return flat(tree["posterior"].to_dataset())


def blackjax_nuts(data: Arrays, draws: int) -> np.ndarray:
    """Window adaptation and NUTS on the model's log density in JAX.

    PyMC's own call is refused by this blackjax, which has no progress bars.
    """
    import blackjax
    import jax
    from pymc.sampling.jax import get_jaxified_graph, get_jaxified_logp

    with model(data) as built:
        log_density = get_jaxified_logp(built)
        names = [v.name for v in built.unobserved_value_vars]
        constrained = get_jaxified_graph(built.value_vars, built.unobserved_value_vars)
        point = [built.initial_point()[v.name] for v in built.value_vars]

    def chain(key: jax.Array) -> list[jax.Array]:
        start, warm, sample = jax.random.split(key, 3)
        keys = jax.random.split(start, len(point))
        jitter = lambda p, k: p + jax.random.uniform(k, p.shape, minval=-1, maxval=1)  # noqa: E731
        begin = [*map(jitter, point, keys)]
        adapt = blackjax.window_adaptation(blackjax.nuts, log_density)
        (state, tuned), _ = adapt.run(warm, begin, num_steps=1000)
        step = blackjax.nuts(log_density, **tuned).step

        def one(state, key: jax.Array):  # noqa: ANN001, ANN202
            state, _ = step(key, state)
            return state, state.position

        _, positions = jax.lax.scan(one, state, jax.random.split(sample, draws // CHAINS))
        return jax.vmap(lambda *z: constrained(*z))(*positions)

    found = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), CHAINS))
    dims = ("chain", "draw", "input")
    values = {n: (dims[: v.ndim], np.asarray(v)) for n, v in zip(names, found, strict=True)}
    wanted = ("alpha", "beta", "mu", "tau", "sigma")
    return flat(xr.Dataset({n: v for n, v in values.items() if n in wanted}))


class Nutpie:
    """Compiled at the first dataset; 400 steps to tune, its default."""

    def __init__(self) -> None:
        self.compiled = None

    def __call__(self, data: Arrays, draws: int) -> np.ndarray:
        import nutpie

        if self.compiled is None:
            self.compiled = nutpie.compile_pymc_model(model(data))
        values = {"seen" if k == "y" else k: v.astype(float) for k, v in data.items()}
        tree = nutpie.sample(
            self.compiled.with_data(**values), draws=draws // CHAINS, tune=400, chains=CHAINS,
            seed=0, progress_bar=False,
        )  # fmt: skip
        return flat(tree["posterior"].to_dataset() if "posterior" in tree else tree.posterior)


class Refined:
    """`pmcl.refine`, compiled at the first dataset."""

    def __init__(self) -> None:
        self.compiled = None

    def __call__(self, data: Arrays, draws: int) -> np.ndarray:
        import pmcl

        if self.compiled is None:
            names = [k for k in data if k != "y"]
            self.compiled = pmcl.compile_model(model(data, placeholders=True), covariates=names)
        one = {k: v[None].astype(float) for k, v in data.items()}
        tree = pmcl.refine(self.compiled, one, draws=draws, random_seed=0, progressbar=False)
        return flat(tree["posterior"].to_dataset().isel(dataset=0))


def advi(data: Arrays, draws: int) -> np.ndarray:
    with model(data):
        fitted = pm.fit(20_000, method="advi", random_seed=0, progressbar=False)
        return flat(fitted.sample(draws, random_seed=0)["posterior"].to_dataset())


def extras_advi(data: Arrays, draws: int) -> np.ndarray:
    from pymc_extras.inference.advi.fit import fit_advi

    tree = fit_advi(model(data), n_steps=20_000, draws=draws, random_seed=0)
    return flat(tree["posterior"].to_dataset())


def pathfinder(data: Arrays, draws: int) -> np.ndarray:
    import pymc_extras

    tree = pymc_extras.fit_pathfinder(
        model(data), num_draws=draws, random_seed=0, progressbar=False
    )
    return flat(tree["posterior"].to_dataset())


# How to draw, and whose version it is.
METHODS: dict[str, tuple[Callable[[], Callable[[Arrays, int], np.ndarray]], str]] = {
    "nuts": (lambda: nuts, "pymc"),
    "blackjax": (lambda: blackjax_nuts, "blackjax"),
    "nutpie": (Nutpie, "nutpie"),
    "refine": (Refined, "pmcl"),
    "advi": (lambda: advi, "pymc"),
    "extras-advi": (lambda: extras_advi, "pymc-extras"),
    "pathfinder": (lambda: pathfinder, "pymc-extras"),
}


def main() -> None:
    """Time one method at some datasets; print one JSON object, and save draws."""
    parser = argparse.ArgumentParser()
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--datasets", type=int, default=10)
    given = parser.parse_args()
    make, package = METHODS[given.method]
    method, test = make(), np.load(given.test)
    seconds, found = [], []
    for i in range(given.datasets):
        begin = now()
        found.append(method({k: test[k][i] for k in test.files}, given.draws))
        seconds.append(now() - begin)
    fewest = min(map(len, found))
    if given.out is not None:
        np.savez(given.out, plain=np.stack([f[:fewest] for f in found]))
    say(
        {
            "version": f"{package} {version(package)}",
            "seconds_to_import": IMPORTED,
            "seconds_of_the_first": seconds[0],
            "seconds_a_dataset": float(np.median(seconds[1:] or seconds)),
            "draws": fewest,
            "peak_gib": peak_gib(),
        }
    )


if __name__ == "__main__":
    main()
