"""ArviZ's checks, dataset by dataset: ArviZ itself would pool, or sum over, a dim `dataset`.

Draws that differ in weight are resampled first: ArviZ counts them alike.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import xarray as xr

from pmcl.data.task import DATASET
from pmcl.draws.results import one
from pmcl.metrics import resample


def loo(idata: xr.DataTree, *, var_name: str | None = None) -> xr.Dataset:
    """Expected log predictive density of each dataset by PSIS leave-one-out cross-validation.

    Parameters
    ----------
    idata : xarray.DataTree
        From `sample`, `refine` or `sample_reference` with ``log_likelihood=True``; padding and
        missing values are dropped.
    var_name : str, optional
        Observed variable whose values are left out; by default those of all, each alone.

    Returns
    -------
    xarray.Dataset
        By `dataset`: `elpd`, its standard error `se`, the effective number of parameters `p`, the
        number of observations `n`, the largest Pareto `khat` of leaving one out, and `warning`:
        whether that is too high.

    Raises
    ------
    ValueError
        Without a group log_likelihood; where `var_name` is no observed variable.

    References
    ----------
    Vehtari, Gelman & Gabry (2017), Practical Bayesian model evaluation using leave-one-out
    cross-validation and WAIC; called in ArviZ.
    """
    from arviz_stats import loo as arviz_loo

    _need(idata, "log_likelihood")

    rows = []
    for tree in _each(idata):
        terms = observed_terms(tree, var_name)
        if terms is None:
            rows.append(xr.Dataset(_NOTHING))
            continue
        found = arviz_loo(terms, pointwise=True)
        row = {
            "elpd": found.elpd,
            "se": found.se,
            "p": found.p,
            "n": found.n_data_points,
            "khat": float(found.pareto_k.max()),
            "warning": bool(found.warning),
        }
        rows.append(xr.Dataset(row))
    return _joined(idata, rows)


_SAMPLED = ("chain", "draw")
_NOTHING = {"elpd": 0.0, "se": 0.0, "p": 0.0, "n": 0, "khat": np.nan, "warning": False}


def observed_terms(tree: xr.DataTree, var_name: str | None = None) -> xr.DataTree | None:
    """Log likelihoods of one dataset as ArviZ takes them: one variable of all that are there.

    None where nothing was observed.
    """
    terms = tree["log_likelihood"].to_dataset()
    if var_name is not None and var_name not in terms:
        raise ValueError(f"var_name: expected one of {list(terms.data_vars)}, got {var_name!r}.")
    names = [*terms.data_vars] if var_name is None else [var_name]
    each = [terms[n].transpose(*_SAMPLED, ...).values for n in names]
    value = np.concatenate([v.reshape(*v.shape[:2], -1) for v in each], axis=2)
    value = value[..., ~np.isnan(value).all(axis=(0, 1))]  # without those that are missing
    if not value.shape[2]:
        return None
    return _with_terms(tree, value)


def _with_nothing(tree: xr.DataTree) -> xr.DataTree:
    """One dataset with a likelihood that is 1: of no value at all ArviZ computes nothing."""
    draws = tree["posterior"].to_dataset()
    return _with_terms(tree, np.zeros((*(draws.sizes[d] for d in _SAMPLED), 1)))


def _with_terms(tree: xr.DataTree, terms: np.ndarray) -> xr.DataTree:
    likelihood = xr.Dataset({"value": ((*_SAMPLED, "element"), _with_tails(terms))})
    return xr.DataTree.from_dict({**tree.children, "log_likelihood": likelihood})


def _with_tails(terms: np.ndarray) -> np.ndarray:
    """Terms (chain, draw, ...) of which none is the same in all draws: ArviZ fits tails to them."""
    ripple = np.random.default_rng(0).normal(scale=1e-9, size=terms.shape[:2])
    ripple = ripple.reshape(*ripple.shape, *(1,) * (terms.ndim - 2))
    return np.where(np.ptp(terms, axis=(0, 1)) == 0, terms + ripple, terms)


def psense(idata: xr.DataTree, *, var_names: Sequence[str] | None = None) -> xr.Dataset:
    """Sensitivity of each dataset's posterior to a power of the prior, and of the likelihood.

    Parameters
    ----------
    idata : xarray.DataTree
        From `sample`, `refine` or `sample_reference` with ``log_prior=True, log_likelihood=True``.
    var_names : sequence of str, optional

    Returns
    -------
    xarray.Dataset
        `prior` and `likelihood`, and ArviZ's `diagnosis`, by `dataset` and `parameter` (labels as
        ArviZ writes them). Where nothing was observed the likelihood says nothing: it has 0.

    Raises
    ------
    ValueError
        Without a group log_prior or log_likelihood.

    References
    ----------
    Kallioinen, Paananen, Buerkner & Vehtari (2024), Detecting and diagnosing prior and likelihood
    sensitivity with power-scaling; called in ArviZ.
    """
    from arviz_stats import psense_summary

    _need(idata, "log_prior", "log_likelihood")
    names = None if var_names is None else list(var_names)
    tables = []
    for tree in _each(idata):
        terms = observed_terms(tree)
        taken = _with_nothing(tree) if terms is None else terms
        table = psense_summary(taken, var_names=names, round_to=12)
        tables.append(xr.Dataset.from_dataframe(table.rename_axis("parameter")))
    return _joined(idata, tables)


STATISTICS: Mapping[str, Callable[[np.ndarray], float]] = {
    "mean": np.mean,
    "sd": np.std,
    "min": np.min,
    "max": np.max,
}


def check_predictive(
    idata: xr.DataTree,
    *,
    statistics: Mapping[str, Callable[[np.ndarray], float]] = STATISTICS,
) -> xr.DataTree:
    """Posterior predictive checks of each dataset: could the model have made it?

    Parameters
    ----------
    idata : xarray.DataTree
        From `sample`, `refine` or `sample_reference` with ``posterior_predictive=True``; with
        ``log_likelihood=True``, too, the values left out are predicted from the others.
    statistics : mapping of str to callable
        Functions of all values of an observed variable.

    Returns
    -------
    xarray.DataTree
        Group `p_value`: by observed variable, `dataset` and `statistic`, how often replicated data
        have a statistic at least as large, ties counted half; near 0 or 1: the model does not make
        such data. Group `loo_pit`, where log likelihoods are there: by variable and dataset the
        p-value of ArviZ's test that the probability integral transforms of left-out values are
        uniform. Of the values that are there; NaN where there are none.

    Raises
    ------
    ValueError
        Without a group posterior_predictive.

    References
    ----------
    Gelman, Meng & Stern (1996), Posterior predictive assessment of model fitness via realized
    discrepancies; Gelfand, Dey & Chang (1992), Model determination using predictive distributions,
    for values left out. Transforms and test are ArviZ's.
    """
    _need(idata, "posterior_predictive")
    values: list[xr.Dataset] = []
    transforms: list[xr.Dataset] = []
    names = list(statistics)
    for tree in _each(idata):
        observed = tree["observed_data"].to_dataset()
        replicated = tree["posterior_predictive"].to_dataset()
        found = {}
        for name in replicated.data_vars:
            truth = observed[name].values
            there = np.isfinite(truth.astype(float))
            drawn = replicated[name].values.reshape(-1, *truth.shape)[:, there]
            rows = []
            for function in statistics.values():
                if not there.any():
                    rows.append(np.nan)
                    continue
                own = function(truth[there])
                many = np.asarray([function(row) for row in drawn])
                rows.append(np.mean(many > own) + np.mean(many == own) / 2)
            found[str(name)] = ("statistic", np.asarray(rows))
        values.append(xr.Dataset(found, coords={"statistic": names}))
        if "log_likelihood" in tree.children:
            transforms.append(_uniformity(tree))
    groups = {"p_value": _joined(idata, values)}
    if transforms:
        groups["loo_pit"] = _joined(idata, transforms)
    return xr.DataTree.from_dict(groups)


def _uniformity(tree: xr.DataTree) -> xr.Dataset:
    """Test of one dataset's leave-one-out transforms, of variables whose terms are values."""
    from arviz_stats import loo_pit
    from arviz_stats.base import array_stats

    terms = tree["log_likelihood"].to_dataset()
    observed = tree["observed_data"].to_dataset()
    names = [str(n) for n in terms.data_vars if terms[n].ndim - 2 == observed[n].ndim]
    found = {}
    terms = terms.transpose(*_SAMPLED, ...).map(lambda v: v.copy(data=_with_tails(v.values)))
    tree = xr.DataTree.from_dict({**tree.children, "log_likelihood": terms})
    for name in names:
        value = loo_pit(tree, var_names=[name])
        value = value[name] if isinstance(value, xr.Dataset) else value
        flat = np.asarray(value).ravel()
        flat = flat[np.isfinite(flat)]
        found[name] = float(array_stats.uniformity_test(flat)[0]) if len(flat) else np.nan
    return xr.Dataset(found)


def weighted(idata: xr.DataTree) -> np.ndarray:
    """Whether the draws of each dataset (shape (dataset,)) differ in weight."""
    if "sample_stats" not in idata.children or "log_weight" not in idata["sample_stats"]:
        return np.zeros(1, bool)
    weight = idata["sample_stats"]["log_weight"].stack(sample=("chain", "draw"))
    return np.atleast_1d((weight.max("sample") - weight.min("sample") > 1e-6).values)


def counted_alike(tree: xr.DataTree) -> xr.DataTree:
    """Resample all groups of one dataset by the draws' weights, where these differ."""
    if not weighted(tree).any():
        return tree
    weight = tree["sample_stats"].to_dataset()["log_weight"].values[0]
    taken = resample(weight, len(weight), np.random.default_rng(0))
    groups = {}
    for name, node in tree.children.items():
        data = node.to_dataset()
        drawn = name != "sample_stats" and "draw" in data.dims
        groups[name] = data.isel(draw=taken).assign_coords(draw=data["draw"]) if drawn else data
    return xr.DataTree.from_dict(groups)


def unconstrained_alike(idata: xr.DataTree) -> xr.DataTree:
    """Resample the unconstrained draws of every dataset by their weights, where these differ."""
    if not weighted(idata).any():
        return idata
    group = "unconstrained_posterior"
    return xr.DataTree.from_dict(
        {group: _joined(idata, [part[group].to_dataset() for part in _each(idata)])}
    )


def _each(idata: xr.DataTree) -> list[xr.DataTree]:
    return [counted_alike(one(idata, name)) for name in _names(idata)]


def _names(idata: xr.DataTree) -> list[str]:
    return [str(n) for n in idata["posterior"].to_dataset()[DATASET].values]


def _joined(idata: xr.DataTree, parts: list[xr.Dataset]) -> xr.Dataset:
    """Put what was found of each dataset side by side."""
    return xr.concat(parts, dim=xr.DataArray(_names(idata), dims=DATASET, name=DATASET))


def _need(idata: xr.DataTree, *groups: str) -> None:
    missing = [g for g in groups if g not in idata.children]
    if missing:
        asked = ", ".join(f"{g}=True" for g in missing)
        raise ValueError(
            f"expected results with the groups {list(groups)}, {missing} are not there: "
            f"ask for them with `sample(..., {asked})`."
        )
