"""Continual learning of a generator of images: one digit, or letter, after another.

    python experiments/generative.py digits      # ten digits: VCL, GVCL, naive, EWC, LP, SI
    python experiments/generative.py letters     # ten letters (notMNIST)
    python experiments/generative.py sweep       # strengths, on the first digits
    python experiments/generative.py tables      # tables and figures of what there is

Nguyen et al. (2018), Variational continual learning, section 6.2 and appendix E: a network from 50
latent numbers to an image, whose first half is a task's own and whose second half all tasks share;
an encoder a task. Differences, for two cores: fewer epochs (`Size`), images of two colours (above
or below one half), weights' prior scaled by the number of inputs, where the paper has standard
normals, and learning rates and variances to begin with of our own. GVCL is VCL with a power of the
likelihood and a strength (Loo, Swaroop & Turner, 2021). Every run is kept in `--out`, task by task,
so that a command that was cut off goes on where it stopped.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from continual import Checkpoint, choose_folders, kept
from online_networks import Images, mnist, not_mnist
from sklearn.neural_network import MLPClassifier

import pmcl

HERE = Path(__file__).parent
METHODS = {
    "VCL": None,
    "GVCL": None,
    "naive": lambda strength: pmcl.Naive(),
    "EWC": lambda strength: pmcl.ElasticWeightConsolidation(strength, decay=1.0),
    "LP": lambda strength: pmcl.OnlineLaplace(strength=strength),
    "SI": lambda strength: pmcl.SynapticIntelligence(strength=strength),
}
BASELINES = (1.0, 10.0, 100.0)
STRENGTHS = {
    "GVCL": (10_000.0,),  # the power, found by hand
    "EWC": BASELINES,
    "LP": BASELINES,
    "SI": BASELINES,
}
SWEPT_TASKS = 4
LETTERS = 4  # times as many epochs
# Of a weight, in its prior's, where a search begins. As in the paper, whose searches all begin at a
# log standard deviation of 1e-6 and take small steps, a search ends before weights are as wide as
# they may be: what one task leaves wide the next one moves, and the first digit is lost.
VARIANCE = 1e-11
# With a power of the likelihood weights end as wide as they may be; nearly all begin narrower, for
# every task anew.
POWER_VARIANCE = 1e-6
POWER_STRENGTH = 10.0


@dataclass(frozen=True)
class Size:
    """How much is computed; `SHORT` is what a test runs.

    Attributes
    ----------
    tasks, latent, hidden : int
    images, epochs, batch_size : int
        For each task.
    generated : int
        Images that the classifier judges, of each task after each.
    test, draws, final_draws : int
        Test images of a task, and draws that weigh each: after every task, and after the last.
    """

    tasks: int = 10
    latent: int = 50
    hidden: int = 500
    images: int = 6000
    epochs: int = 27
    batch_size: int = 50
    generated: int = 1000
    test: int = 50
    draws: int = 500
    final_draws: int = 5000


FULL = Size()
SHORT = Size(2, 2, 8, 60, 2, 20, 10, 4, 50, 50)


def of_letters(size: Size) -> Size:
    """More epochs for the fewer images (800 a letter), and fewer draws to judge by on the way."""
    return replace(size, epochs=LETTERS * size.epochs, draws=size.draws // 5)


def generator(size: Size) -> pm.Model:
    """From latent numbers to the pixels of an image; the first layers are a task's own."""
    first, rest = pmcl.prior_scale(size.latent), pmcl.prior_scale(size.hidden, "relu")
    n, h = size.latent, size.hidden
    with pm.Model(coords={"row": range(1), "pixel": range(784), "latent": range(n)}) as model:
        task = pm.Data("task", np.array(0))
        layer = z = pm.Normal("z", 0, 1, dims=("row", "latent"))
        for i, (inputs, scale) in enumerate(((n, first), (h, rest))):
            W = pm.Normal(f"W{i}", 0, scale, shape=(size.tasks, inputs, h))
            b = pm.Normal(f"b{i}", 0, scale, shape=(size.tasks, h))
            layer = pt.maximum(layer @ W[task] + b[task], 0)
        for i, outputs in ((2, h), (3, 784)):
            W = pm.Normal(f"W{i}", 0, rest, shape=(h, outputs))
            b = pm.Normal(f"b{i}", 0, rest, shape=outputs)
            layer = layer @ W + b
            layer = pt.maximum(layer, 0) if i == 2 else layer
        assert z.ndim == 2
        pm.Bernoulli(
            "y", logit_p=layer, observed=np.zeros((1, 784), np.int8), dims=("row", "pixel")
        )
    return model


def images(stream: pmcl.LatentPosterior, task: int, number: int, *, seed: int = 0) -> np.ndarray:
    """Generate images of a task, shape (image, 784): probabilities of the pixels."""
    q = stream.approximation()
    with jax.enable_x64(False):
        keys = jax.random.split(jax.random.key(seed), 10)
        parts = []
        for key in keys:  # draws of the weights
            one, two = jax.random.split(key)
            noise = jax.random.normal(one, q.mean.shape, jnp.float32)
            w = stream.compiled.unravel(
                jnp.asarray(q.mean) + jnp.exp(jnp.asarray(q.log_sd)) * noise
            )
            layer = jax.random.normal(two, (-(-number // 10), w["W0"].shape[1]), jnp.float32)
            for i in (0, 1):
                layer = jax.nn.relu(layer @ w[f"W{i}"][task] + w[f"b{i}"][task])
            layer = jax.nn.relu(layer @ w["W2"] + w["b2"])
            parts.append(np.asarray(jax.nn.sigmoid(layer @ w["W3"] + w["b3"])))
    return np.concatenate(parts)[:number]


def tasks(name: str, size: Size) -> tuple[list[tuple[np.ndarray, np.ndarray]], MLPClassifier]:
    """Training and test images by label, and a classifier of the labels that was trained on all."""
    train, test = not_mnist() if name == "letters" else mnist()
    found = []
    for label in range(size.tasks):
        parts = (train.X[train.y == label][: size.images], test.X[test.y == label][: size.test])
        found.append(tuple((X > 0.5).astype(np.int8) for X in parts))
    return found, classifier(train, test, size)


def classifier(train: Images, test: Images, size: Size) -> MLPClassifier:
    """Train the judge of generated images."""
    some = slice(2000 if size.images < FULL.images else None)
    judge = MLPClassifier((256,), max_iter=10, early_stopping=True, random_state=0)
    judge.fit(train.X[some], train.y[some])
    print(f"classifier: {judge.score(test.X, test.y):.4f} of the test images", flush=True)
    return judge


def uncertainty(judge: MLPClassifier, found: np.ndarray, label: int) -> float:
    """Kullback-Leibler divergence of what the judge says from the label (nats), a mean."""
    p = judge.predict_proba(found)[:, label]
    return float(-np.log(np.maximum(p, 1e-12)).mean())


def begin(size: Size, name: str, seed: int, strength: float | None) -> pmcl.LatentPosterior:
    """Return the stream before any task."""
    make = METHODS[name]
    method = None if make is None else make(strength)
    power = name == "GVCL"
    rate = 2e-2 if power else 5e-3 if method is None else 1e-3
    variance = POWER_VARIANCE if power else VARIANCE
    stream = pmcl.fit_online(
        generator(size), local="z", covariates=["task"], method=method,
        power=strength if power else 1.0, strength=POWER_STRENGTH if power else 1.0,
        start=pmcl.ScatteredStart(means=1 - variance, narrow=power),
        encoder=pmcl.Encoder(width=size.hidden, depth=3, per_task=True, warm=False),
        search=pmcl.Search(
            epochs=size.epochs, steps=1, batch_size=size.batch_size, draws=1, learning_rate=rate
        ),
        precision="single", random_seed=seed, progressbar=False,
    )  # fmt: skip
    assert isinstance(stream, pmcl.LatentPosterior)
    return stream


def run(
    out: Path, experiment: str, name: str, seed: int, size: Size, *, strength: float | None = None
) -> dict:
    """Learn one task after another; judge all so far after each."""
    label = f"{experiment} {name} {seed}" + ("" if strength is None else f" {strength:g}")
    checkpoint = Checkpoint(out / "states" / label.replace(" ", "_"))
    found: dict = {"uncertainty": [], "log_likelihood": [], "seconds": [], "images": []}
    found["settings"] = asdict(size)
    stream = begin(size, name, seed, strength)
    stream, found = checkpoint.read(generator(size)) or (stream, found)
    parts, judge = tasks(experiment, size)
    for i, (train, _) in enumerate(parts):
        if i < len(found["seconds"]):
            continue
        began = time.perf_counter()
        stream = stream.update({"y": train, "task": i}, name=str(i), progressbar=False)
        found["seconds"].append(time.perf_counter() - began)
        found["images"].append(len(train))
        made = [images(stream, t, size.generated) for t in range(i + 1)]
        found["uncertainty"].append([uncertainty(judge, m, t) for t, m in enumerate(made)])
        found["log_likelihood"].append(
            [likelihood(stream, t, parts[t][1], size.draws)["mean"] for t in range(i + 1)]
        )
        checkpoint.stem.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            f"{checkpoint.stem}_{i}.npz",
            images=np.stack([m[:8] for m in made]).astype(np.float16),
        )
        print(
            label, i, "uncertainty", np.round(found["uncertainty"][-1], 3), "log likelihood",
            np.round(found["log_likelihood"][-1], 1), round(found["seconds"][-1]), flush=True,
        )  # fmt: skip
        checkpoint.write(stream, found)
    found["final"] = [
        likelihood(stream, t, test, size.final_draws) for t, (_, test) in enumerate(parts)
    ]
    return found


def ended(found: dict) -> float:
    """Mean test log likelihood at the end (nats)."""
    return float(np.mean([f["mean"] for f in found["final"]]))


def best(runs: dict[str, dict], name: str) -> float:
    """Return the strength at which `sweep` found the highest test log likelihood at the end.

    Before all of a method's have run, the middle one.
    """
    found = {float(key[2]): ended(run) for key, run in _of(runs, "sweep").items() if key[0] == name}
    complete = found.keys() >= set(STRENGTHS[name])
    if complete:
        return max(found, key=lambda s: found[s])
    return STRENGTHS[name][len(STRENGTHS[name]) // 2]


def recorded(out: Path, results: Path) -> dict[str, dict]:
    """Return the runs that the results tell of, with those of this folder in their place."""
    path = results / "generative.json"
    runs = json.loads(path.read_text())["runs"] if path.exists() else {}
    return runs | {p.stem: json.loads(p.read_text()) for p in (out / "runs").glob("*.json")}


def likelihood(stream: pmcl.LatentPosterior, task: int, y: np.ndarray, draws: int) -> dict:
    """Mean test log likelihood of an image (nats), its Monte Carlo error, and k-hat's median."""
    found = stream.log_predictive({"y": y, "task": task}, draws=draws, task=str(task))
    return {
        "mean": float(found.mean()),
        "error": float(np.sqrt((found["error"] ** 2).sum()) / found.size),
        "khat": float(found["khat"].median()),
    }


def written(out: Path, results: Path) -> None:
    """Write the tables and figures of the runs that there are."""
    runs = dict(sorted(recorded(out, results).items()))
    if not runs:
        return
    lines = ["# Generators of images, one task after another", ""]
    for experiment in ("digits", "letters"):
        rows = _of(runs, experiment)
        if not rows:
            continue
        first = next(iter(rows.values()))
        size, numbers = first["settings"], first["images"]
        images = f"{min(numbers)} to {max(numbers)}" if len(set(numbers)) > 1 else f"{numbers[0]}"
        lines += [
            f"## {experiment}", "",
            f"`python experiments/generative.py {experiment}`: {images} images a task, "
            f"{size['epochs']} epochs. Classifier uncertainty (nats) and test log likelihood "
            f"({size['final_draws']} draws, nats) after the last task.", "",
            "| method | seed | uncertainty, mean | of the first task, after it | and at the end "
            "| log likelihood, mean | of the first task | minutes |",
            "|---|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        for (name, seed, *strength), found in rows.items():
            last = found["uncertainty"][-1]
            lines.append(
                f"| {called(name, *strength)} | {seed} | {np.mean(last):.3f} "
                f"| {found['uncertainty'][0][0]:.3f} | {last[0]:.3f} "
                f"| {ended(found):.1f} | {found['final'][0]['mean']:.1f} "
                f"| {sum(found['seconds']) / 60:.1f} |"
            )
        lines.append("")
        # of each method the run that ended best
        last_of = {key[0]: key for key in sorted(rows, key=lambda k: ended(rows[k]))}
        shown = {name: last_of[name] for name in METHODS if name in last_of}
        lines += _by_task(experiment, {name: rows[key] for name, key in shown.items()}, size)
        _pictures(out, results, experiment, shown)
        _curves(results, experiment, {name: rows[key] for name, key in shown.items()})
    if swept := _of(runs, "sweep"):
        lines += _swept(swept)
    results.mkdir(parents=True, exist_ok=True)
    (results / "generative.json").write_text(json.dumps({"runs": runs}, indent=1) + "\n")
    (results / "generative.md").write_text("\n".join(lines))


def _of(runs: dict[str, dict], experiment: str) -> dict[tuple[str, ...], dict]:
    """Runs of an experiment by method, seed, and perhaps strength."""
    return {tuple(k.split("_")[1:]): run for k, run in runs.items() if k.startswith(experiment)}


def _swept(rows: dict[tuple[str, ...], dict]) -> list[str]:
    """Table of the strengths that were tried."""
    tasks = next(iter(rows.values()))["settings"]["tasks"]
    lines = [
        "## Strengths", "",
        f"`python experiments/generative.py sweep`: test log likelihood (nats) after the first "
        f"{tasks} digits, the mean over them and that of the first. Each method takes its best.",
        "",
        "| method | strength, or power | log likelihood, mean | of the first |",
        "|---|---|---|---|",
    ]  # fmt: skip
    for (name, _, strength), run in sorted(rows.items(), key=_place):
        lines.append(f"| {name} | {strength} | {ended(run):.1f} | {run['final'][0]['mean']:.1f} |")
    return [*lines, ""]


def _place(item: tuple[tuple[str, ...], dict]) -> tuple[int, float]:
    name, _, strength = item[0]
    return list(METHODS).index(name), float(strength)


def _by_task(experiment: str, shown: dict[str, dict], size: dict) -> list[str]:
    """Tables of the end by task: both measures, with the error of one and its k-hat."""
    names = [label_of(experiment, i) for i in range(size["tasks"])]
    lines = [
        f"By task after the last one: log likelihood of {size['test']} test images (nats an "
        f"image), its Monte Carlo error and the median k-hat of {size['final_draws']} draws' "
        "weights (above 0.7 the figure is more of a bound than an estimate).", "",
        f"| method | {' | '.join(names)} |", "|---|" + "---|" * len(names),
    ]  # fmt: skip
    for name, row in shown.items():
        cells = [f"{f['mean']:.1f} ± {f['error']:.1f} ({f['khat']:.2f})" for f in row["final"]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "", f"Classifier uncertainty (nats) of {size['generated']} generated images.", "",
        f"| method | {' | '.join(names)} |", "|---|" + "---|" * len(names),
    ]  # fmt: skip
    for name, row in shown.items():
        cells = [f"{u:.3f}" for u in row["uncertainty"][-1]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def called(name: str, strength: str = "") -> str:
    """A method with its strength, or the power of the likelihood."""
    what = "power" if name == "GVCL" else "strength"
    return f"{name}, {what} {strength}" if strength else name


def label_of(experiment: str, task: int) -> str:
    """Digit or letter of a task."""
    return chr(ord("A") + task) if experiment == "letters" else str(task)


def _pictures(out: Path, results: Path, experiment: str, shown: dict[str, tuple[str, ...]]) -> None:
    """Draw the generated images of each task after each, method by method."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    results.mkdir(parents=True, exist_ok=True)
    for name, key in shown.items():
        stem = "_".join((experiment, *key))
        files = sorted(
            (out / "states").glob(f"{stem}_*.npz"), key=lambda p: int(p.stem.split("_")[-1])
        )
        n = len(files)
        if not n:
            continue
        grid = np.ones((n * 30, n * 30))
        for row, path in enumerate(files):
            with np.load(path) as f:
                for column, some in enumerate(f["images"]):
                    at = np.s_[row * 30 : row * 30 + 28, column * 30 : column * 30 + 28]
                    grid[at] = 1 - some[row % len(some)].reshape(28, 28)
        figure, axis = plt.subplots(figsize=(4.5, 4.5), layout="constrained")
        axis.imshow(grid, cmap="gray", vmin=0, vmax=1)
        ticks = np.arange(n) * 30 + 14
        labels = [label_of(experiment, i) for i in range(n)]
        axis.set_xticks(ticks, labels)
        axis.set_yticks(ticks, labels)
        axis.set(title=name, xlabel="generated", ylabel="after learning")
        figure.savefig(results / f"generative_{experiment}_{name}.png", dpi=90)
        plt.close(figure)


def _curves(results: Path, experiment: str, rows: dict) -> None:
    """Draw both measures over time, as means over the tasks so far."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for label, row in rows.items():
        for axis, key in zip(axes, ("uncertainty", "log_likelihood"), strict=True):
            means = [np.mean(v) for v in row[key]]
            axis.plot(range(1, len(means) + 1), means, marker="o", label=label)
    axes[0].set(xlabel="tasks", ylabel="classifier uncertainty (nats)", yscale="log")
    axes[1].set(xlabel="tasks", ylabel="test log likelihood of an image (nats)")
    axes[0].legend(fontsize="small")
    figure.suptitle(f"{experiment}: mean over the tasks so far")
    figure.savefig(results / f"generative_{experiment}.png", dpi=90)
    plt.close(figure)


def said(found: dict) -> str:
    """One line of a run."""
    return (
        f"uncertainty {np.mean(found['uncertainty'][-1]):.3f}, log likelihood "
        f"{ended(found):.1f} in {sum(found['seconds']):.0f} s"
    )


def plan(given: argparse.Namespace) -> Iterator[tuple[str, str, int, float | None]]:
    """Runs that are asked for: experiment, method, seed, strength."""
    if given.part == "sweep":
        for name in given.methods:
            for strength in STRENGTHS.get(name, ()):
                yield "sweep", name, 0, strength
        return
    runs = recorded(given.out, given.results)
    for seed in given.seeds:
        for name in given.methods:
            yield given.part, name, seed, best(runs, name) if name in STRENGTHS else None


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", choices=["digits", "letters", "sweep", "tables"])
    parser.add_argument("--out", type=Path, help="of runs; out/generative by default")
    parser.add_argument("--results", type=Path, help="of tables; experiments/results by default")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--short", action="store_true")
    given = parser.parse_args()
    choose_folders(given, "generative")
    size = SHORT if given.short else FULL
    if given.part == "letters":
        size = of_letters(size)
    if given.part == "sweep":
        size = replace(size, tasks=min(size.tasks, SWEPT_TASKS))
    if given.part != "tables":
        for experiment, name, seed, strength in plan(given):
            label = f"{experiment} {name} {seed}" + ("" if strength is None else f" {strength:g}")
            kept(
                given.out / "runs", label,
                lambda e=experiment, n=name, s=seed, k=strength: run(
                    given.out, e, n, s, size, strength=k
                ),
                said,
            )  # fmt: skip
    written(given.out, given.results)


if __name__ == "__main__":
    main()
