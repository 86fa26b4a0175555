"""BayesFlow's own example of self-consistency losses, done in BayesFlow 2.1 and in pmcl.

The example (`Self_Consistency.ipynb` of BayesFlow's repository): tau ~ Gamma(2, 1), mu ~
N(0, 1 / tau), ten y ~ N(mu, 1 / tau). A network is trained on 500 batches of 64 simulations; then,
for as many steps, on 32 unlabeled datasets, too, whose sd of 10 no simulation has. The posterior
has a closed form, by which all is judged: mean MMD^2 to exact draws of (mu, log tau).

Settings of BayesFlow's side are the example's; its densities are written in Keras, on JAX. pmcl has
the model from PyMC: with its defaults, and with a network that is whitened by no search and learns
from data alone, or with as many simulations beside them as the example has. All have the same core.
Rows are kept as those of `peers.py` are.
"""

import os
import sys
from pathlib import Path

from peer_clock import now

BEGIN = now()
import numpy as np  # noqa: E402
from peer_problem import peak_gib, say  # noqa: E402

NAME = "self_consistency"
ROWS, UNLABELED, FAR = 10, 32, 10.0
TESTS = 100
DRAWS = 1000
EPOCHS, BATCHES, BATCH = 10, 50, 64
SIDES = {
    "BayesFlow": (".venv-benchmarks", "bayesflow"),
    "pmcl, nothing searched": ("main", "unsearched"),
    "pmcl, nothing searched, simulations beside the data": ("main", "rehearsing"),
    "pmcl": ("main", "pmcl"),
}

type Draws = dict[str, np.ndarray]  # by stage and data: (dataset, draw, (mu, log tau))


def datasets() -> Draws:
    """Unlabeled data, others like them, and simulated ones."""
    rng = np.random.default_rng(3)
    tau = rng.gamma(2.0, 1.0, (TESTS, 1))
    mu = rng.standard_normal((TESTS, 1)) / np.sqrt(tau)
    return {
        "unlabeled": FAR * rng.standard_normal((UNLABELED, ROWS)),
        "new, like these": FAR * rng.standard_normal((TESTS, ROWS)),
        "simulated": mu + rng.standard_normal((TESTS, ROWS)) / np.sqrt(tau),
    }


def exact(y: np.ndarray) -> np.ndarray:
    """Draws of the posterior of each dataset: (dataset, draw, (mu, log tau))."""
    rng = np.random.default_rng(4)
    n, mean = y.shape[1], y.mean(axis=1, keepdims=True)
    rate = 1 + 0.5 * ((y - mean) ** 2).sum(axis=1, keepdims=True) + n / (2 * (n + 1)) * mean**2
    tau = rng.gamma(2 + n / 2, 1.0, (len(y), DRAWS)) / rate
    mu = n * mean / (n + 1) + rng.standard_normal(tau.shape) / np.sqrt((n + 1) * tau)
    return np.stack([mu, np.log(tau)], axis=-1)


def bayesflow(data: Draws) -> tuple[dict, Draws]:
    """Train on simulations, then with the self-consistency loss."""
    os.environ["KERAS_BACKEND"] = "jax"
    from importlib.metadata import version

    import bayesflow as bf
    import keras
    from bayesflow.experimental import self_consistency as sc
    from keras import ops

    imported = now() - BEGIN
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)

    def simulated() -> Draws:
        tau = rng.gamma(2.0, 1.0, 1)
        mu = rng.normal(0.0, 1 / np.sqrt(tau), 1)
        return {"mu": mu, "tau": tau, "y": rng.normal(mu, 1 / np.sqrt(tau), ROWS)}

    def log_prior(mu, tau, **others):  # noqa: ANN001, ANN003, ANN202
        normal = 0.5 * ops.log(tau / (2 * np.pi)) - 0.5 * tau * mu**2
        return normal + ops.log(tau) - tau

    def log_likelihood(y, mu, tau, **others):  # noqa: ANN001, ANN003, ANN202
        terms = 0.5 * ops.log(tau / (2 * np.pi)) - 0.5 * tau * (y - mu) ** 2
        return ops.sum(terms, axis=1)

    adapter = bf.Adapter().log("tau")
    begin = now()
    labeled = bf.OnlineDataset(
        simulator=bf.make_simulator(simulated),
        adapter=adapter,
        batch_size=BATCH,
        num_batches=BATCHES,
    )
    unlabeled = bf.OfflineDataset(
        data={"y": data["unlabeled"]}, adapter=bf.Adapter(), batch_size=UNLABELED // 4
    )
    both = sc.MultiDataset(labeled=labeled, unlabeled=unlabeled)
    posterior = bf.estimators.BasicEstimator(
        inference_network=bf.networks.CouplingFlow(),
        summary_network=bf.networks.DeepSet(),
        adapter=bf.Adapter()
        .as_set("y")
        .concatenate(["mu", "tau"], into="inference_variables")
        .rename("y", "summary_variables"),
    )
    estimator = sc.SemiSupervisedEstimator(
        estimators={"prior": log_prior, "likelihood": log_likelihood, "posterior": posterior},
        adapter=adapter,
    )
    rate = keras.optimizers.schedules.CosineDecay(1e-3, decay_steps=100 * BATCHES)
    optimizer = keras.optimizers.Adam(rate, clipvalue=1.0)
    losses = {"estimator_metrics": {"labeled": ["posterior"]}}
    found: dict = {"version": f"BayesFlow {version('bayesflow')}", "seconds_to_import": imported}
    draws: Draws = {}

    def draw(stage: str) -> None:
        for name, y in data.items():
            one = estimator.sample(estimator="posterior", num_samples=DRAWS, conditions={"y": y})
            draws[f"{stage}: {name}"] = np.concatenate([one["mu"], np.log(one["tau"])], -1)

    for stage in ("simulations only", "adapted"):
        if stage == "adapted":
            losses["composite_metrics"] = {"unlabeled": sc.SelfConsistencyLoss(num_samples=16)}
            begin = now()
        estimator.compile(optimizer, **losses)
        estimator.fit(dataset=both, epochs=EPOCHS, verbose=0)
        found[f"seconds, {stage}"] = now() - begin
        draw(stage)
    return found, draws


def ours(data: Draws, *, searched: bool, rehearsed: int = 0) -> tuple[dict, Draws]:
    """Train on simulations, then adapt, with so many simulations beside the data at each step."""
    import warnings

    import pymc as pm

    import pmcl

    warnings.simplefilter("ignore", UserWarning)  # of data far from the simulations, as they are
    imported = now() - BEGIN
    with pm.Model(coords={"obs": range(ROWS)}) as model:
        tau = pm.Gamma("tau", 2, 1)
        mu = pm.Normal("mu", 0, tau=tau)
        pm.Normal("y", mu, tau=tau, observed=np.zeros(ROWS), dims="obs")
    given = {"random_seed": 0, "progressbar": False}
    begin = now()
    if searched:
        posterior = pmcl.fit_amortized(model, **given)
    else:
        network = pmcl.Network(pmcl.DeepSet(), pmcl.CouplingFlow(), whiten=False)
        posterior = pmcl.fit_amortized(
            model, network=network, steps=EPOCHS * BATCHES, batch_size=BATCH, **given
        )
    found: dict = {"version": f"pmcl {pmcl.__version__}", "seconds_to_import": imported}
    found["seconds, simulations only"] = now() - begin
    draws: Draws = {}

    def draw(stage: str, **settings) -> None:  # noqa: ANN003
        for name, y in data.items():
            tree = posterior.sample({"y": y}, DRAWS, random_seed=1, **settings)
            one = tree["posterior"].to_dataset().isel(chain=0).transpose("dataset", "draw", ...)
            draws[f"{stage}: {name}"] = np.stack([one["mu"], np.log(one["tau"])], -1)

    draw("simulations only", refine=False)
    begin = now()
    draw("by the density")
    found["seconds, by the density"] = now() - begin
    begin = now()
    posterior = posterior.adapt(
        {"y": data["unlabeled"]}, name="far", strategy=pmcl.Replay(simulations=rehearsed), **given
    )
    found["seconds, adapted"] = now() - begin
    found["steps of adapting"] = int(posterior.records[0].record.steps)
    draw("adapted", refine=False)
    return found, draws


def side(name: str, out: Path) -> None:
    """Do one side in this process."""
    ways = {
        "bayesflow": bayesflow,
        "unsearched": lambda data: ours(data, searched=False),
        "rehearsing": lambda data: ours(data, searched=False, rehearsed=BATCH),
        "pmcl": lambda data: ours(data, searched=True),
    }
    found, draws = ways[name](datasets())
    np.savez(out, **draws)
    say(found | {"seconds": now() - BEGIN, "peak_gib": peak_gib()})


def judge(path: Path) -> dict[str, float]:
    """Mean MMD^2 by stage and data."""
    from peer_rows import accuracy

    truth = {name: exact(y) for name, y in datasets().items()}
    with np.load(path) as saved:
        return {
            f"mmd2_{kind}": accuracy(saved[kind], truth[kind.split(": ")[1]])
            for kind in saved.files
        }


def main() -> None:
    """Do what is not there yet, judge it, write JSON and the table."""
    if "--side" in sys.argv:  # one side, in its own environment
        side(sys.argv[sys.argv.index("--side") + 1], Path(sys.argv[sys.argv.index("--out") + 1]))
        return
    from peer_rows import ROOT, Rows, one_core
    from peer_tables import days, each, mmd2
    from results import Table, parser, write

    arguments = parser(__doc__ or "")
    arguments.add_argument("--runs", type=Path, default=ROOT / "out" / NAME)
    arguments.add_argument("--limit", type=float, default=600.0, help="seconds a side may take")
    arguments.add_argument("--again", action="store_true", help="a second day")
    given = arguments.parse_args()
    one_core()
    rows = Rows(
        given.runs, given.out / f"{NAME}.json", limit=given.limit, again=given.again, until=None
    )
    lines = []
    for name, (environment, short) in SIDES.items():
        command = ["peer_self_consistency.py", "--side", short]
        some = rows.row(name, environment, command, judge=judge)
        for stage in ("simulations only", "adapted", "by the density"):
            key = f"seconds, {stage}"
            if not any(key in one for one in some):
                continue
            cells = [
                each(some, lambda o, k=f"mmd2_{stage}: {data}": o.get(k), mmd2)
                for data in datasets()
            ]
            version = each(some, lambda o: o["version"], str)
            lines.append([name, stage, *cells, each(some, lambda o, k=key: o.get(k)),
                          each(some, lambda o: o["peak_gib"]), version, days(some)])  # fmt: skip
    columns = ["", "network", *(f"MMD², {d}" for d in datasets()), "seconds", "peak, GiB",
               "version", "measured"]  # fmt: skip
    table = Table("A normal mean and precision; ten rows a dataset", columns, lines)
    write(NAME, given.out, {"rows": rows.known}, table)


if __name__ == "__main__":
    main()
