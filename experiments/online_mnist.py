"""Continual learning of image classifiers by online variational inference, and its baselines.

    python experiments/online_mnist.py permuted     # ten tasks: MNIST with its pixels permuted
    python experiments/online_mnist.py split        # five pairs of digits, a head for each
    python experiments/online_mnist.py letters      # five pairs of letters (notMNIST)
    python experiments/online_mnist.py toy          # two tasks in the plane, with their figure
    python experiments/online_mnist.py sweep        # strengths of the baselines (--on split, ...)
    python experiments/online_mnist.py epochs       # how long the first task has to be learned
    python experiments/online_mnist.py tables       # tables and figures of what there is

Nguyen et al. (2018), Variational continual learning, sections 6.1 and appendices A to C. Every run
is kept in `--out`, task by task, so that a command that was cut off goes on where it stopped.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from continual import Checkpoint, kept
from online_networks import Images, classifier, mnist, not_mnist, probabilities
from scipy.stats import sem

import pmcl

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
SWEPT = 0  # the seed of `sweep`
DRAWS = 30  # of the weights, for a prediction


@dataclass(frozen=True)
class Problem:
    """One experiment: its network, its tasks and how they are learned.

    Attributes
    ----------
    hidden : tuple of int
    labels, heads : int
    epochs, batch_size : int
    coreset : int
        Stored images of a task.
    permuted : bool
        Tasks are permutations of the pixels; else pairs of labels.
    prior : float, optional
        Of the weights (`classifier`); None: as published.
    learning_rate : float
        Of the variational searches.
    damping : float
        Of synaptic intelligence, as Zenke et al. (2017) chose for such tasks.
    means : float, optional
        Part of the prior's variance that means begin with, at random (`ScatteredStart`); None: the
        first search begins at the maximum of the likelihood, as published.
    power, strength : float
        Of generalized variational continual learning (Loo et al., 2021): the likelihood's power,
        and how firmly means are held.
    point_epochs : int, optional
        Of the searches for one point; `epochs` by default.
    """

    hidden: tuple[int, ...]
    labels: int
    heads: int
    epochs: int
    batch_size: int
    coreset: int
    permuted: bool = False
    prior: float | None = None
    learning_rate: float = 5e-3
    damping: float = 1e-3
    means: float | None = None
    power: float = 10.0
    strength: float = 1.0
    point_epochs: int | None = None

    def model(self):  # noqa: ANN201
        return classifier(784, self.hidden, self.labels, self.heads, prior=self.prior)

    def search(self) -> pmcl.Search:
        return pmcl.Search(
            epochs=self.epochs, batch_size=self.batch_size, draws=1,
            learning_rate=self.learning_rate,
        )  # fmt: skip

    def start(self) -> pmcl.AbstractStart:
        """Where searches begin; later ones as narrow as the first."""
        if self.means is None:
            return pmcl.MaximumLikelihoodStart(narrow=True)
        return pmcl.ScatteredStart(means=self.means, narrow=True)


PROBLEMS = {
    "permuted": Problem(
        (100, 100), 10, 1, 20, 256, 200,
        permuted=True, prior=4.0, learning_rate=2e-2, damping=0.1, means=0.99,
        power=1.0, strength=10.0,
    ),
    "split": Problem((256, 256), 2, 5, 20, 256, 40),
    # a fortieth of the published images: more epochs
    "letters": Problem((150, 150, 150, 150), 2, 5, 60, 256, 40, point_epochs=300),
}  # fmt: skip
# The paper's sweeps; the best of `sweep` is taken, as there.
STRENGTHS = {
    "EWC": (pmcl.ElasticWeightConsolidation, (1.0, 10.0, 100.0, 1e3, 1e4)),
    "LP": (pmcl.OnlineLaplace, (0.01, 0.1, 1.0, 10.0, 100.0)),
    "SI": (pmcl.SynapticIntelligence, (0.01, 0.1, 0.5, 1.0, 2.0)),
}
# What `sweep` found best, and of letters, which were not swept, what the paper did.
DEFAULTS = {
    "permuted": {"EWC": 10.0, "LP": 10.0, "SI": 0.5},
    "split": {"EWC": 1.0, "LP": 100.0, "SI": 0.5},
    "letters": {"EWC": 1e4, "LP": 1.0, "SI": 0.1},
}
EPOCHS = (2, 5, 10, 20, 40, 100)
NAMES = (
    "VCL", "GVCL", "VCL + random", "VCL + k-center", "random alone", "k-center alone", *STRENGTHS,
)  # fmt: skip


def tasks(problem: Problem, name: str, seed: int) -> Iterator[tuple[Images, Images]]:
    """Training and test images of each task."""
    train, test = not_mnist() if name == "letters" else mnist()
    if problem.permuted:
        rng = np.random.default_rng(seed)
        for i in range(10):
            order = rng.permutation(784) if i else np.arange(784)
            yield Images(train.X[:, order], train.y), Images(test.X[:, order], test.y)
        return
    for i in range(5):
        # digits 0/1, 2/3, ...; letters A/F, B/G, ...
        pair = (i, i + 5) if name == "letters" else (2 * i, 2 * i + 1)
        yield tuple(
            Images(part.X[np.isin(part.y, pair)], (part.y[np.isin(part.y, pair)] == pair[1]) * 1)
            for part in (train, test)
        )


def begin(problem: Problem, name: str, seed: int, strength: float | None) -> pmcl.OnlinePosterior:
    """Return the stream before any task."""
    search = problem.search()
    start = problem.start()
    memory, method = None, None
    firm: dict = {}
    if name == "GVCL":
        firm = {"power": problem.power, "strength": problem.strength}
    elif "random" in name:
        memory = pmcl.RandomCoreset(problem.coreset, per_task=True)
    elif "k-center" in name:
        memory = pmcl.KCenterCoreset(problem.coreset, per_task=True, standardise=False)
    if name in STRENGTHS:
        kind = STRENGTHS[name][0]
        assert strength is not None
        more = {"EWC": {"decay": 1.0}, "SI": {"damping": problem.damping}}.get(name, {})
        method = kind(strength=strength, **more)
        search = pmcl.Search(
            epochs=problem.point_epochs or problem.epochs,
            batch_size=problem.batch_size,
            learning_rate=1e-3,
        )
        start = pmcl.ScatteredStart(means=0.01)
    if "alone" in name:  # what is stored does not depend on what is known, which nobody asks for
        search = pmcl.Search(steps=1, batch_size=problem.batch_size, draws=1)
    return pmcl.fit_online(
        problem.model(), memory=memory, search=search, start=start, method=method,
        precision="single", random_seed=seed, progressbar=False, **firm,
    )  # fmt: skip


def run(out: Path, experiment: str, name: str, seed: int, *, strength: float | None = None) -> dict:
    """Learn one task after another; return the accuracies after each, and the seconds."""
    problem = PROBLEMS[experiment]
    label = f"{experiment} {name} {seed}" + ("" if strength is None else f" {strength:g}")
    checkpoint = Checkpoint(out / "states" / label.replace(" ", "_"))
    found: dict = {"accuracy": [], "seconds": [], "settings": vars(problem)}
    if name in STRENGTHS and strength is None:
        swept = best_of_sweep(out / "runs", experiment, name)
        if swept is not None and seed == SWEPT:
            return {k: swept[k] for k in found} | {"strength": swept["swept"]}
        strength = DEFAULTS[experiment][name] if swept is None else swept["swept"]
        found["strength"] = strength
    stream = begin(problem, name, seed, strength)
    stream, found = checkpoint.read(problem.model()) or (stream, found)
    tests: list[Images] = []
    for i, (train, test) in enumerate(tasks(problem, experiment, seed)):
        tests.append(test)
        if i < len(found["accuracy"]):
            continue
        batch = {"X": train.X, "y": train.y}
        if problem.heads > 1:
            batch["head"] = np.full(len(train.y), i)
        stream = stream.update(batch, name=str(i), progressbar=False)
        asked = of_stored_images(problem, stream, seed) if "alone" in name else stream
        found["seconds"].append(float(asked.history["seconds"][-1]))
        found["accuracy"].append(accuracies(problem, asked, tests))
        print(label, i, np.round(found["accuracy"][-1], 4), round(found["seconds"][-1]), flush=True)
        checkpoint.write(stream, found)
    return found


def best_of_sweep(runs: Path, experiment: str, name: str) -> dict | None:
    """Return the run of `sweep` that ended best, of the first seed; None before all have run."""
    found = [json.loads(p.read_text()) for p in runs.glob(f"sweep_{experiment}_{name}_*.json")]
    complete = {r["swept"] for r in found} >= set(STRENGTHS[name][1])
    return max(found, key=lambda r: np.mean(r["accuracy"][-1])) if complete else None


def first_task(epochs: int) -> dict:
    """Learn the first task of `permuted` for so many epochs."""
    problem = replace(PROBLEMS["permuted"], epochs=epochs)
    train, test = next(tasks(problem, "permuted", 0))
    began = time.perf_counter()
    stream = begin(problem, "VCL", 0, None)
    stream = stream.update({"X": train.X, "y": train.y}, progressbar=False)
    seconds = time.perf_counter() - began
    return {
        "epochs": epochs, "seconds": [seconds],
        "accuracy": [accuracies(problem, stream, [test])],
        "lower_bound": float(stream.history["lower_bound"][-1]),
    }  # fmt: skip


def of_stored_images(
    problem: Problem, stream: pmcl.OnlinePosterior, seed: int
) -> pmcl.OnlinePosterior:
    """Return the posterior of the stored images and nothing else."""
    slow = replace(
        problem, learning_rate=Problem.learning_rate
    )  # few images: a faster search ends nowhere
    fresh = pmcl.fit_online(
        problem.model(), search=slow.search(), start=pmcl.MaximumLikelihoodStart(),
        precision="single", random_seed=seed, progressbar=False,
    )  # fmt: skip
    return fresh.update(stream.memory.drop_vars(("batch", "time")), progressbar=False)


def accuracies(problem: Problem, stream: pmcl.OnlinePosterior, tests: list[Images]) -> list[float]:
    """Accuracy on the test images of every task so far."""
    by_task = problem.heads > 1 and len(stream.state.memory) > 0
    found = []
    for i, test in enumerate(tests):
        head = i if problem.heads > 1 else 0
        task = str(i) if by_task else None
        p = probabilities(stream, test.X, head, labels=problem.labels, draws=DRAWS, task=task)
        found.append(float((p.argmax(axis=1) == test.y).mean()))
    return found


PUBLISHED = {
    "permuted": {
        "VCL": 0.90, "VCL + random": 0.93, "VCL + k-center": 0.93, "EWC": 0.84, "LP": 0.82,
        "SI": 0.86,
    },
    "split": {
        "VCL": 0.970, "VCL + random": 0.984, "VCL + k-center": 0.984, "EWC": 0.631, "LP": 0.612,
        "SI": 0.989,
    },
    # of 400,000 images; 10,000 are at hand here
    "letters": {"VCL": 0.92, "VCL + random": 0.96, "EWC": 0.71, "LP": 0.63, "SI": 0.94},
}  # fmt: skip


def together(runs: Path, results: Path) -> dict:
    """Return the figures of every run: what the results hold, and what has run here."""
    path = results / "online_mnist.json"
    found: dict = {"made": "", "with": {}, "experiments": {}, "epochs": {}}
    if path.exists():
        found = json.loads(path.read_text())
    for stem, run in ((p.stem, json.loads(p.read_text())) for p in sorted(runs.glob("*.json"))):
        if run["made"] >= found["made"]:
            found |= {"made": run["made"], "with": run["with"]}
        kind, *rest = stem.split("_")
        last = float(np.mean(run["accuracy"][-1]))
        if kind == "epochs":
            found["epochs"][rest[0]] = {
                "accuracy": last, "lower_bound": run["lower_bound"], "seconds": run["seconds"][0],
            }  # fmt: skip
            continue
        experiment = rest[0] if kind == "sweep" else kind
        settings = {k: run["settings"].get(k) for k in ("hidden", "epochs", "point_epochs")}
        place = found["experiments"].setdefault(experiment, {"methods": {}, "sweep": {}})
        place |= settings
        if kind == "sweep":
            place["sweep"].setdefault(rest[1], {})[rest[2]] = last
            continue
        place["methods"].setdefault(" ".join(rest[:-1]), {})[rest[-1]] = {
            "accuracy": last,
            "minutes": sum(run["seconds"]) / 60,
            "curve": [float(np.mean(a)) for a in run["accuracy"]],
        }
    return found


def written(runs: Path, results: Path) -> None:
    """Write what there is: accuracies after the last task, and a figure of all."""
    found = together(runs, results)
    lines = ["# Image classifiers, one task after another", ""]
    of = {e: found["experiments"][e] for e in PUBLISHED if e in found["experiments"]}
    for experiment, known in of.items():
        epochs = known.get("point_epochs")
        of_points = f" ({epochs} of EWC, LP and SI)" if epochs else ""
        lines += [
            f"## {experiment}", "",
            f"`python experiments/online_mnist.py {experiment}`: hidden layers "
            f"{known['hidden']}, {known['epochs']} epochs a task{of_points}.", "",
            "| method | mean accuracy after the last task | published | seeds | minutes |",
            "|---|---|---|---|---|",
        ]  # fmt: skip
        for name in (n for n in NAMES if n in known["methods"]):
            several = known["methods"][name].values()
            finals = [r["accuracy"] for r in several]
            error = f" ± {sem(finals):.3f}" if len(finals) > 1 else ""
            lines.append(
                f"| {name} | {np.mean(finals):.3f}{error} "
                f"| {PUBLISHED[experiment].get(name, '')} | {len(finals)} "
                f"| {np.mean([r['minutes'] for r in several]):.1f} |"
            )
        lines.append("")
        if known["sweep"]:
            lines += ["| baseline | strength | mean accuracy |", "|---|---|---|"]
            for name, swept in sorted(known["sweep"].items()):
                by_strength = sorted(swept.items(), key=lambda item: float(item[0]))
                lines += [f"| {name} | {s} | {a:.3f} |" for s, a in by_strength]
            lines.append("")
    if found["epochs"]:
        lines += [
            "## epochs", "", "The first task of `permuted`, by VCL.", "",
            "| epochs | accuracy | lower bound, nats | seconds |", "|---|---|---|---|",
            *(
                f"| {n} | {r['accuracy']:.4f} | {r['lower_bound']:.0f} | {r['seconds']:.0f} |"
                for n, r in sorted(found["epochs"].items(), key=lambda item: int(item[0]))
            ), "",
        ]  # fmt: skip
    if not of:
        return
    results.mkdir(parents=True, exist_ok=True)
    (results / "online_mnist.json").write_text(json.dumps(found, indent=1) + "\n")
    (results / "online_mnist.md").write_text("\n".join(lines))
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(of), figsize=(5 * len(of), 4), layout="constrained", squeeze=False
    )
    for axis, (experiment, known) in zip(axes[0], of.items(), strict=True):
        for name in (n for n in NAMES if n in known["methods"]):
            curve = np.mean([r["curve"] for r in known["methods"][name].values()], axis=0)
            axis.plot(range(1, len(curve) + 1), curve, marker="o", label=name)
        axis.set(title=experiment, xlabel="tasks", ylabel="mean accuracy on all tasks so far")
        axis.legend(fontsize="small")
    figure.savefig(results / "online_mnist.png", dpi=100)


def toy(results: Path) -> dict[str, list[float]]:
    """Two tasks in the plane whose second class differs, a head for each, by VCL and by EWC.

    Nguyen et al. (2018), appendix D. Returns the accuracies; the figure has the contours of the
    probability after the first task, and after the second for both.
    """
    rng = np.random.default_rng(0)
    centres = [((0.0, 0.0), (2.5, 0.0)), ((0.0, 0.0), (0.0, 2.5))]
    parts = []
    for i, pair in enumerate(centres):
        X = np.concatenate([rng.normal(c, 0.6, size=(100, 2)) for c in pair]).astype(np.float32)
        parts.append({"X": X, "y": np.repeat([0, 1], 100), "head": np.full(200, i)})
    grid = np.stack(np.meshgrid(np.linspace(-2, 5, 60), np.linspace(-2, 5, 60)), -1)
    at = grid.reshape(-1, 2).astype(np.float32)
    accuracy: dict[str, list[float]] = {}
    shown = {}
    for name in ("VCL", "EWC"):
        point = name == "EWC"
        stream = pmcl.fit_online(
            classifier(2, (20,), 2, 2), random_seed=0, precision="single", progressbar=False,
            method=pmcl.ElasticWeightConsolidation(1.0, decay=1.0) if point else None,
            search=pmcl.Search(steps=3000, draws=4, learning_rate=1e-2),
            start=pmcl.ScatteredStart(means=0.1 if point else 0.9),
        )  # fmt: skip
        contours = []
        for i, part in enumerate(parts):
            stream = stream.update(part, progressbar=False)
            heads = range(i + 1)
            contours += [probabilities(stream, at, h, labels=2, draws=50)[:, 1] for h in heads]
        accuracy[name] = []
        for h, p in enumerate(parts):
            said_one = probabilities(stream, p["X"], h, labels=2, draws=50)[:, 1] > 0.5
            accuracy[name].append(float((said_one == p["y"]).mean()))
        shown[name] = contours
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    results.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(2, 3, figsize=(10, 6), layout="constrained")
    titles = ("first task, after it", "first task, after both", "second task, after both")
    for row, (name, contours) in zip(axes, shown.items(), strict=True):
        for axis, title, p, part in zip(row, titles, contours, (0, 0, 1), strict=True):
            axis.contourf(grid[..., 0], grid[..., 1], p.reshape(60, 60), levels=11, cmap="RdBu")
            X, y = parts[part]["X"], parts[part]["y"]
            axis.scatter(*X.T, c=np.where(y, "black", "green"), s=6)
            axis.set(title=f"{name}: {title}", xlim=(-2, 5), ylim=(-2, 5))
    figure.savefig(results / "online_toy.png", dpi=100)
    return accuracy


def said(found: dict) -> str:
    """One line of a run."""
    return f"{np.mean(found['accuracy'][-1]):.4f} in {sum(found['seconds']):.0f} s"


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", choices=[*PROBLEMS, "toy", "sweep", "epochs", "tables"])
    parser.add_argument("--on", choices=list(PROBLEMS), default="permuted", help="of `sweep`")
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "online_mnist")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--methods", nargs="+", default=list(NAMES))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    given = parser.parse_args()
    runs = given.out / "runs"
    if given.part == "sweep":
        for name, (_, strengths) in STRENGTHS.items():
            for s in strengths:
                kept(
                    runs, f"sweep {given.on} {name} {s:g}",
                    lambda n=name, s=s: {
                        **run(given.out, given.on, n, SWEPT, strength=s), "swept": s,
                    },
                    said,
                )  # fmt: skip
    elif given.part == "epochs":
        for n in EPOCHS:
            kept(runs, f"epochs {n}", lambda n=n: first_task(n), said)
    elif given.part == "toy":
        print(toy(given.results))
    elif given.part == "tables":
        written(runs, given.results)
    else:
        for seed in given.seeds:
            for name in given.methods:
                kept(
                    runs, f"{given.part} {name} {seed}",
                    lambda n=name, s=seed: run(given.out, given.part, n, s), said,
                )  # fmt: skip


if __name__ == "__main__":
    main()
