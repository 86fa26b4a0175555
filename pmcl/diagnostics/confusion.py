"""Would the true model be found? Datasets simulated from each model, and compared under all."""

import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pymc as pm
import xarray as xr

from pmcl.amortized.fit import simulator_of
from pmcl.amortized.level_sampler import MODEL_INSTEAD, refuse
from pmcl.amortized.multilevel import MultilevelPosterior
from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.compile import Simulator
from pmcl.compile.covariates import SourcesLike
from pmcl.compile.labelled import model_or_context
from pmcl.data.simulated import simulated_task
from pmcl.data.task import DATASET, Task
from pmcl.diagnostics.model_choice import AGAINST, MODEL, compare_models, prior_of
from pmcl.metrics import trust_of
from pmcl.refinement.settings import Refine
from pmcl.refinement.standalone import refine as refine_alone
from pmcl.runtime import precision
from pmcl.runtime.arguments import positive, seed_of

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.axes import Axes

type ModelLike = pm.Model | AmortizedPosterior
SIMULATION, TRUE, BIN = "simulation", "true_model", "bin"
_BINS = 10
_HELD = 1000  # datasets whose draws are in memory together; those of more are in a folder


def model_recovery(
    models: Mapping[str, ModelLike],
    datasets: int = 200,
    *,
    prior: Mapping[str, float] | None = None,
    covariates: SourcesLike | None = None,
    draws: int = 1000,
    refine: Refine | None = None,
    bins: int = _BINS,
    client: "Client | None" = None,
    random_seed: int | None = None,
    progressbar: bool = True,
) -> xr.Dataset:
    """Simulate datasets from each of some models, and ask which one :func:`compare_models` names.

    Before data are collected it says whether these models can be told apart at all, and whether the
    probabilities that will be stated of them can be believed.

    Parameters
    ----------
    models : mapping of str to pymc.Model or AmortizedPosterior
        Of the same observed variables. An amortized posterior is sampled with its network, refined
        where needed; a PyMC model is refined without one.
    datasets : int
        In all; models share them in proportion to their prior probability.
    prior : mapping of str to float, optional
        Prior probabilities of the models, up to a factor; all alike by default.
    covariates : mapping, optional
        Where covariates of PyMC models come from, as in `fit_amortized`; a model that does not know
        one leaves it out.
    draws : int
        Posterior draws of each dataset and model.
    refine : Refine, optional
        Hyper-parameters of refinement.
    bins : int
        Of the probabilities, for their calibration.
    client : distributed.Client, optional
        A Dask cluster whose workers sample the posteriors.
    random_seed : int, optional
    progressbar : bool

    Returns
    -------
    xarray.Dataset
        `confusion`: of the datasets that each `true_model` made, the share that has its highest
        probability under each `model`; `mean_probability` by the same dims. By `bin` of the stated
        probability: the mean `stated`, the share `found` of models that made the data, the bounds
        `low` and `high` in which `found` lies in 99 of 100 runs where probabilities are right, and
        the number of probabilities `number`. `p_value`: of Spiegelhalter's test that they are.
        `log_score`: mean log probability of the true model. By `simulation`: `truth`, and what
        `compare_models` says of each. Simulations without probabilities are left out of all but
        that; `left_out` counts them.

    Raises
    ------
    UnsupportedModelError
        Where a model cannot be simulated.
    ValueError
        Where the models' data differ; as `compare_models` does.

    References
    ----------
    Wilson & Collins (2019), Ten simple rules for the computational modeling of behavioral data;
    Schad, Nicenboim, Buerkner, Betancourt & Vasishth (2023), Workflow techniques for the robust
    use of Bayes factors; Spiegelhalter (1986), Probabilistic prediction in patient management and
    clinical trials.
    """
    names, seed = list(models), seed_of(random_seed, None)
    if len(names) < 2:
        raise ValueError(f"models: expected two or more, got {names}.")
    weight = prior_of(names, prior)
    share = _shared(positive("datasets", datasets), weight)
    simulators = {n: _simulator(m, covariates) for n, m in models.items()}
    _check_alike(simulators)
    made = {
        n: _made(models[n], simulators[n], int(k), seed + i)
        for i, (n, k) in enumerate(zip(names, share, strict=True))
        if k
    }
    parts = [task.labelled() for task in made.values()]
    data = xr.concat(parts, dim=DATASET, join="outer") if len(parts) > 1 else parts[0]
    truth = np.repeat(np.arange(len(names)), [len(made.get(n, ())) for n in names])
    data = data.assign_coords({DATASET: [f"{names[t]} {i}" for i, t in enumerate(truth)]})
    trees = {}
    for i, (name, model) in enumerate(models.items()):
        own = data[[v.name for v in simulators[name].compiled.data]]
        trees[name] = _sampled(
            model, simulators[name], own, draws, refine, client, seed + 1000 + i, progressbar
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are counted
        compared = compare_models(trees, prior=dict(zip(names, weight, strict=True)))
    return _summary(compared, truth, names, bins)


def plot_model_recovery(recovery: xr.Dataset, *, axes: "list[Axes] | None" = None) -> "list[Axes]":
    """Plot which model is named for data of each, and whether stated probabilities are right.

    Parameters
    ----------
    recovery : xarray.Dataset
        From :func:`model_recovery`.
    axes : list of matplotlib.axes.Axes, optional
        Two of them.

    Returns
    -------
    list of matplotlib.axes.Axes
    """
    import matplotlib.pyplot as plt

    if axes is None:
        axes = list(plt.subplots(1, 2, figsize=(9, 4), layout="constrained")[1])
    left, right = axes
    share = recovery["confusion"].transpose(TRUE, MODEL)
    left.imshow(share.values, cmap="cividis", vmin=0, vmax=1)
    for (i, j), value in np.ndenumerate(share.values):
        ink = "black" if value > 0.5 else "white"
        left.text(j, i, f"{value:.2f}", color=ink, ha="center", va="center")
    left.set_xticks(range(share.sizes[MODEL]), [str(n) for n in share[MODEL].values])
    left.set_yticks(range(share.sizes[TRUE]), [str(n) for n in share[TRUE].values])
    left.set(xlabel="most probable model", ylabel="true model", title="share of datasets")
    there = recovery.isel({BIN: np.flatnonzero(recovery["number"].values > 0)})
    stated = there["stated"].values
    right.plot([0, 1], [0, 1], color="gray", linewidth=1)
    right.vlines(stated, there["low"], there["high"], color="#0072B2", alpha=0.4, linewidth=5)
    right.plot(stated, there["found"], "o", color="#D55E00")
    right.set(
        xlabel="stated probability",
        ylabel="share of true models",
        title=f"calibration (p = {float(recovery['p_value']):.2g})",
    )
    return [left, right]


def _shared(total: int, weight: np.ndarray) -> np.ndarray:
    """Whole numbers of this sum, as near to the weights as can be."""
    exact = total * weight
    found = np.floor(exact).astype(int)
    found[np.argsort(found - exact, kind="stable")[: total - found.sum()]] += 1
    return found


def _simulator(model: ModelLike, covariates: SourcesLike | None) -> Simulator:
    if isinstance(model, AmortizedPosterior):
        return model.simulator
    if isinstance(model, MultilevelPosterior):
        refuse("model_recovery", MODEL_INSTEAD)
    if not isinstance(model, pm.Model):
        raise TypeError(
            f"models: expected PyMC models or amortized posteriors, got {type(model).__name__}."
        )
    model = model_or_context(model)
    known = {v.name for v in model.data_vars}
    if isinstance(covariates, Mapping):
        covariates = {k: v for k, v in covariates.items() if k in known}
    return simulator_of(model, covariates)


def _check_alike(simulators: Mapping[str, Simulator]) -> None:
    (first, reference), *rest = simulators.items()
    for name, simulator in rest:
        for what in ("observed", "covariates"):
            a, b = ({i.name for i in getattr(s.compiled, what)} for s in (reference, simulator))
            if a != b and (what == "observed" or not (a <= b or b <= a)):
                raise ValueError(
                    f"models: expected the same {what} variables, got {sorted(a)} of {first!r} "
                    f"and {sorted(b)} of {name!r}."
                )


def _made(model: ModelLike, simulator: Simulator, n: int, seed: int) -> Task:
    if isinstance(model, AmortizedPosterior):
        row = model.structure.row
    else:
        row = next(iter(simulator.compiled.shared_dims), None)
    with precision.scope():
        return simulated_task(simulator, row, n, random_seed=seed)[1]


def _sampled(
    model: ModelLike,
    simulator: Simulator,
    data: xr.Dataset,
    draws: int,
    refine: Refine | None,
    client: "Client | None",
    seed: int,
    progressbar: bool,
) -> xr.DataTree:
    """What evidences are read from; datasets whose posterior does not stand keep their warning."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore", UserWarning)
        many = client is not None or data.sizes[DATASET] > _HELD
        store = Path(folder) / "draws.zarr" if many else None
        if isinstance(model, AmortizedPosterior):
            tree = model.sample(
                data,
                draws,
                refine="auto" if refine is None else refine,
                fallback=None,
                store=store,
                client=client,
                random_seed=seed,
                progressbar=progressbar,
            )
        else:
            tree = refine_alone(
                simulator.compiled,
                data,
                draws=draws,
                refine=refine,
                fallback=None,
                store=store,
                client=client,
                random_seed=seed,
                progressbar=progressbar,
            )
        wanted = ("dataset_stats", "observed_data")
        kept = {k: v.to_dataset().load() for k, v in tree.children.items() if k in wanted}
    return xr.DataTree.from_dict(kept)


def _summary(compared: xr.Dataset, truth: np.ndarray, names: list[str], bins: int) -> xr.Dataset:
    usable = compared["refused"].values == ""
    probability = compared["probability"].values[usable]
    made_by = truth[usable]
    edges = np.linspace(0, 1, positive("bins", bins) + 1)
    edges[-1] += 1e-9  # one is in the last bin
    trust = trust_of(probability, made_by, edges)
    chosen = np.eye(len(names))[probability.argmax(axis=1)]
    rows = [made_by == i for i in range(len(names))]

    def mean(values: np.ndarray) -> np.ndarray:
        return np.stack([values[r].mean(axis=0) if r.any() else values[0] * np.nan for r in rows])

    by = (TRUE, MODEL)
    found = {
        "confusion": (by, mean(chosen)),
        "mean_probability": (by, mean(probability)),
        **{k: (BIN, getattr(trust, k)) for k in ("stated", "found", "low", "high", "number")},
        "p_value": trust.p_value,
        "log_score": trust.log_score,
        "left_out": int((~usable).sum()),
        "truth": (SIMULATION, np.asarray(names)[truth]),
    }
    kept = ["log_evidence", "log_evidence_error", "probability", "probability_error", "refused"]
    own = compared[kept].rename({DATASET: SIMULATION}).drop_vars(AGAINST, errors="ignore")
    coords = {TRUE: names, BIN: (edges[:-1] + edges[1:]) / 2}
    return xr.merge([own, xr.Dataset(found, coords=coords)], combine_attrs="override")
