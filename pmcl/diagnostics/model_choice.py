"""Which model: evidences of the same datasets under several models, weighed against each other."""

from collections.abc import Mapping

import numpy as np
import xarray as xr

from pmcl.data.task import DATASET
from pmcl.diagnostics.by_dataset import counted_alike, observed_terms
from pmcl.draws.results import one
from pmcl.metrics import log_bayes_factors, model_frequencies, model_probabilities
from pmcl.runtime.arguments import listed, warn

MODEL = "model"
AGAINST = "against"
_INTERVAL = 0.94  # as ArviZ's


def compare_models(
    idatas: Mapping[str, xr.DataTree],
    *,
    prior: Mapping[str, float] | None = None,
    concentration: float = 1.0,
    loo: bool | None = None,
    random_seed: int = 0,
) -> xr.Dataset:
    """Weigh models by their evidence for the same datasets.

    Parameters
    ----------
    idatas : mapping of str to xarray.DataTree
        By the name of a model, what `sample` or `refine` gave for it: of the same datasets in the
        same order, written to a `store` or not.
    prior : mapping of str to float, optional
        Prior probabilities of the models, up to a factor; all alike by default.
    concentration : float
        Of the Dirichlet prior of the models' frequencies in the population that datasets come from.
    loo : bool, optional
        Whether stacking weights are found by leave-one-out cross-validation, dataset by dataset, in
        ArviZ. By default where all results have log likelihoods (``log_likelihood=True``).
    random_seed : int
        Of the draws of `frequency`.

    Returns
    -------
    xarray.Dataset
        By `dataset` and `model`: `log_evidence` and its Monte Carlo error `log_evidence_error`;
        `probability` of the model given the dataset and `probability_error`, into which the errors
        of all evidences are carried. By `dataset`, `model` and `against`: `log_bayes_factor` and
        its error. By `dataset`: `refused`, why a dataset has no probabilities; empty where it has.
        By `dataset` and `model`, where asked for: `elpd`, `elpd_error` and `stacking_weight`.
        With two datasets or more, by `model`: `frequency` of the model in the population that the
        datasets come from, each of which may have its own model; its sd `frequency_sd`, the ends
        of its 94 % interval `frequency_low` and `frequency_high`; `exceedance`, the probability
        that it is the most frequent one.

    Raises
    ------
    ValueError
        Where datasets or observed values differ; under an improper prior, which leaves the
        evidence without a meaning; for draws of NUTS alone, which have no evidence; where no
        dataset has a posterior that stands under every model.

    Warns
    -----
    UserWarning
        Naming datasets without probabilities: their posterior does not stand under some model, or
        NUTS had to sample it.

    References
    ----------
    Kass & Raftery (1995), Bayes factors; Yao, Vehtari, Simpson & Gelman (2018), Using stacking to
    average Bayesian predictive distributions, called in ArviZ; Stephan, Penny, Daunizeau, Moran &
    Friston (2009), Bayesian model selection for group studies, whose posterior is sampled here.
    """
    names = _checked(idatas)
    weight = prior_of(list(idatas), prior)
    log_evidence, error, refused = _evidence(idatas)
    usable = refused == ""
    if not usable.any():
        raise ValueError(
            "compare_models: expected a dataset whose posterior stands under every model, there is "
            f"none: {refused[0]} ({names[0]!r})."
        )
    if not usable.all():
        left = [n for n, ok in zip(names, usable, strict=True) if not ok]
        first = refused[names.index(left[0])]
        warn(
            f"{len(left)} of {len(names)} datasets have no probabilities of models "
            f"({listed(left)}; of {left[0]!r}: {first}): `refused` says why. More draws, another "
            "parametrisation or `refine=pmcl.Refine(...)` may help."
        )
    log_evidence[~usable], error[~usable] = np.nan, np.nan
    chance = model_probabilities(log_evidence, error, weight)
    factor = log_bayes_factors(log_evidence, error)
    by = (DATASET, MODEL)
    found = {
        "log_evidence": (by, log_evidence),
        "log_evidence_error": (by, error),
        "probability": (by, chance.value),
        "probability_error": (by, chance.error),
        "log_bayes_factor": ((*by, AGAINST), factor[0]),
        "log_bayes_factor_error": ((*by, AGAINST), factor[1]),
        "refused": (DATASET, refused),
    }
    if usable.sum() > 1:
        drawn = model_frequencies(
            log_evidence[usable],
            error[usable],
            np.full(len(weight), float(concentration)),
            np.random.default_rng(random_seed),
        )
        found |= {k: (MODEL, v) for k, v in _population(drawn).items()}
    asked = all("log_likelihood" in t.children for t in idatas.values()) if loo is None else loo
    if asked:
        found |= {k: (by, v) for k, v in _stacked(idatas, names).items()}
    coords = {DATASET: names, MODEL: list(idatas), AGAINST: list(idatas)}
    attrs = {f"prior_{n}": float(w) for n, w in zip(idatas, weight, strict=True)}
    return xr.Dataset(found, coords=coords, attrs=attrs)


def prior_of(names: list[str], prior: Mapping[str, float] | None) -> np.ndarray:
    """Prior probabilities of models in their order; they sum to one."""
    if prior is None:
        return np.full(len(names), 1 / len(names))
    if {*prior} != {*names}:
        raise ValueError(f"prior: expected a number for each of {names}, got {list(prior)}.")
    weight = np.asarray([prior[n] for n in names], float)
    if not (weight >= 0).all() or not 0 < weight.sum() < np.inf:
        raise ValueError(f"prior: expected numbers of at least 0, some above, got {dict(prior)}.")
    return weight / weight.sum()


def _checked(idatas: Mapping[str, xr.DataTree]) -> list[str]:
    """Names of the datasets, which have to be the same ones with the same observations."""
    if not isinstance(idatas, Mapping):
        raise TypeError(
            "compare_models: expected a mapping from the models' names to their results, got "
            f"{type(idatas).__name__}."
        )
    if len(idatas) < 2:
        raise ValueError(f"compare_models: expected two models or more, got {list(idatas)}.")
    for model, tree in idatas.items():
        if "dataset_stats" not in tree.children or "log_evidence" not in tree["dataset_stats"]:
            raise ValueError(
                f"compare_models: the results of model {model!r} have no evidence; expected those "
                "of `sample` or `pmcl.refine`. (Chains of NUTS have none.)"
            )
    (first, reference), *rest = idatas.items()
    names = _names(reference)
    for model, tree in rest:
        if _names(tree) != names:
            raise ValueError(
                "compare_models: expected the same datasets in the same order, got "
                f"{listed(names)} of {first!r} and {listed(_names(tree))} of {model!r}."
            )
        _check_observed(first, reference, model, tree)
    return names


def _check_observed(first: str, reference: xr.DataTree, model: str, tree: xr.DataTree) -> None:
    groups = [t.get("observed_data") for t in (reference, tree)]
    one, other = (xr.Dataset() if g is None else g.to_dataset() for g in groups)
    if {*one.data_vars} != {*other.data_vars}:
        raise ValueError(
            f"compare_models: expected the same observed variables, got {list(one.data_vars)} of "
            f"{first!r} and {list(other.data_vars)} of {model!r}: evidences of other data cannot "
            "be compared."
        )
    for name in one.data_vars:
        a, b = one[name].values, other[name].values
        if a.shape != b.shape or not np.allclose(a, b, rtol=1e-6, equal_nan=True):
            raise ValueError(
                f"compare_models: expected the same values of {name!r} under every model, those "
                f"of {first!r} and {model!r} differ."
            )


def _evidence(
    idatas: Mapping[str, xr.DataTree],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log evidence and its error, (dataset, model), and why a dataset has none, (dataset,)."""
    values, errors = [], []
    refused: np.ndarray = np.asarray("", dtype=object)
    for model, tree in idatas.items():
        stats = tree["dataset_stats"].to_dataset()
        value, error = stats["log_evidence"].values, stats["log_evidence_error"].values
        note = _text(stats, "note") if "note" in stats else np.full(len(value), "")
        improper = np.char.find(note, "no evidence: ") >= 0
        if improper.any():
            said = str(note[improper][0]).split("no evidence: ")[-1]
            raise ValueError(
                f"compare_models: model {model!r} has no evidence ({said}): it would depend on a "
                "constant that the prior leaves open. Give it proper priors, and densities of your "
                "own all their constants."
            )
        why = np.where(
            _text(stats, "engine") == "nuts",
            "NUTS sampled it, and chains have no evidence",
            _text(stats, "warning"),
        )
        why = np.where((why == "") & ~np.isfinite(value), "no evidence", why)
        why = np.where(why == "", "", np.char.add(f"{model}: ", why.astype(str))).astype(object)
        refused = why if refused.ndim == 0 else np.where(refused == "", why, refused)
        values.append(value)
        errors.append(error)
    return np.stack(values, axis=1).astype(float), np.stack(errors, axis=1).astype(float), refused


def _text(stats: xr.Dataset, name: str) -> np.ndarray:
    """Text as NumPy's own; that of a store has another type."""
    return np.array([str(v) for v in stats[name].values])


def _population(drawn: np.ndarray) -> dict[str, np.ndarray]:
    """Summaries of draws of frequencies, (draw, model)."""
    low, high = np.quantile(drawn, [(1 - _INTERVAL) / 2, (1 + _INTERVAL) / 2], axis=0)
    most = drawn.argmax(axis=1)[:, None] == np.arange(drawn.shape[1])
    return {
        "frequency": drawn.mean(axis=0),
        "frequency_sd": drawn.std(axis=0),
        "frequency_low": low,
        "frequency_high": high,
        "exceedance": most.mean(axis=0),
    }


def _stacked(idatas: Mapping[str, xr.DataTree], names: list[str]) -> dict[str, np.ndarray]:
    """Leave-one-out elpd and stacking weights of every dataset, (dataset, model), by ArviZ."""
    from arviz_stats import compare as arviz_compare

    missing = [m for m, t in idatas.items() if "log_likelihood" not in t.children]
    if missing:
        raise ValueError(
            f"loo: expected log likelihoods of every model, {missing} have none: ask for them "
            "with `log_likelihood=True`."
        )
    columns = {"elpd": "elpd", "elpd_error": "se", "stacking_weight": "weight"}
    rows = []
    for name in names:
        trees = {m: observed_terms(counted_alike(one(t, name))) for m, t in idatas.items()}
        if any(t is None for t in trees.values()):  # nothing was observed
            rows.append(np.full((len(idatas), len(columns)), np.nan))
            continue
        table = arviz_compare(trees, method="stacking", round_to="none").loc[list(idatas)]
        rows.append(table[[*columns.values()]].to_numpy(float))
    return {ours: np.stack([r[:, i] for r in rows]) for i, ours in enumerate(columns)}


def _names(tree: xr.DataTree) -> list[str]:
    return [str(n) for n in tree["dataset_stats"].to_dataset()[DATASET].values]
