"""Two sets of posterior draws of the same datasets, compared dataset by dataset."""

import numpy as np
import xarray as xr

from pmcl.data.one_dataset import LABEL
from pmcl.data.task import DATASET
from pmcl.draws.results import SAMPLE, in_order
from pmcl.metrics import agreement, c2st, null_mmd2, posterior_discrepancy


def compare(
    idata: xr.DataTree,
    reference: xr.DataTree,
    *,
    draws: int = 1000,
    nulls: int = 100,
    classifier: bool = False,
    random_seed: int = 0,
) -> xr.Dataset:
    """Compare posterior draws with reference draws of the same datasets.

    Everything is on the unconstrained scale, standardised by the reference's mean and sd.

    Parameters
    ----------
    idata, reference : xarray.DataTree
        Results of `sample` and of `sample_reference`; those datasets are compared that the
        reference has, by name.
    draws : int
        Draws of each that enter the MMD.
    nulls : int
        Values of the null, over all datasets, that the verdict rests on; at least one a dataset.
    classifier : bool
        Also train a classifier to tell the two apart (C2ST; 0.5 is a perfect match). Takes a
        second or more for each dataset.
    random_seed : int

    Returns
    -------
    xarray.Dataset
        Per dataset `bias_mean`, `bias_sd`, `mmd2`, `null_mmd2` (between two halves of the
        reference's chains; one value of the null), `above_null` and, if asked for, `c2st`; averages
        over datasets as `mean_*`. Attributes: `null_threshold` (the 99 % quantile of the null),
        `exceptions`, `allowed` and `agrees`.

    Raises
    ------
    ValueError
        Where the reference has datasets that `idata` has not, or parameters differ.

    References
    ----------
    Gretton et al. (2012), A Kernel Two-Sample Test, eq. 3; Lopez-Paz & Oquab (2017), Revisiting
    Classifier Two-Sample Tests.
    """
    here, there = _draws(idata, "idata"), _draws(reference, "reference")
    names, every = ([str(n) for n in group[DATASET].values] for group in (there, here))
    if missing := [name for name in names if name not in every]:
        raise ValueError(
            f"compare: expected all datasets of the reference in idata, got none of "
            f"{missing[:5]}; idata has {every[:5]}."
        )
    pairs = []
    for i, name in enumerate(names):
        one, other = _of_one(here, every.index(name)), _of_one(there, i)
        labels = {str(d): other[d].values for d in {*other.dims} & {*other.coords} - {DATASET}}
        (x, of_idata), (y, of_reference) = _flat(in_order(one, labels)), _flat(other)
        if of_idata != of_reference:
            raise ValueError(
                f"compare: expected the same parameters in both, got {of_idata} in idata and "
                f"{of_reference} in the reference, of dataset {name!r}."
            )
        pairs.append((x, y))
    rng = np.random.default_rng(random_seed)
    columns: dict[str, list[float]] = {k: [] for k in ("bias_mean", "bias_sd", "mmd2", "null_mmd2")}
    tested, pooled = [], []
    each = -(-nulls // len(names))
    for one_idata, one_reference in pairs:
        x, y = (v.reshape(-1, v.shape[-1]) for v in (one_idata, one_reference))
        found = posterior_discrepancy(x, y, n=draws, rng=rng)
        for name in ("bias_mean", "bias_sd", "mmd2"):
            columns[name].append(getattr(found, name))
        own = [null_mmd2(*_halves(one_reference, k), n=draws, rng=rng) for k in range(max(each, 1))]
        columns["null_mmd2"].append(own[0])
        pooled += own
        if classifier:
            tested.append(c2st(x[:draws], y[:draws], random_seed=random_seed))
    if classifier:
        columns["c2st"] = tested
    verdict = agreement(columns["mmd2"], pooled)
    data: dict[str, tuple[str, np.ndarray]] = {
        k: (DATASET, np.asarray(v)) for k, v in columns.items()
    }
    data["above_null"] = (DATASET, np.asarray(columns["mmd2"]) > verdict.threshold)
    means = {f"mean_{k}": ((), float(np.mean(v))) for k, v in columns.items()}
    return xr.Dataset(
        {**data, **means},
        coords={DATASET: names},
        attrs={
            "null_threshold": float(verdict.threshold),
            "exceptions": int(verdict.exceptions),
            "allowed": int(verdict.allowed),
            "agrees": int(verdict.agrees),
        },
    )


def _halves(draws: np.ndarray, which: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut draws (chain, draw, dim) in two halves by chains, another way for each `which`.

    A single chain is cut in the middle.
    """
    chains = len(draws)
    if chains < 2:
        middle = draws.shape[1] // 2
        return draws[0, :middle], draws[0, middle:]
    order = np.random.default_rng(which).permutation(chains) if which else np.arange(chains)
    halves = (order[: chains // 2], order[chains // 2 : 2 * (chains // 2)])
    first, second = (draws[h].reshape(-1, draws.shape[-1]) for h in halves)
    return first, second


def _draws(tree: xr.DataTree, argument: str) -> xr.Dataset:
    """Unconstrained draws, with a dim of datasets."""
    if "unconstrained_posterior" not in tree.children:
        raise ValueError(
            f"compare: {argument} has no group 'unconstrained_posterior'; expected the result of "
            "`sample` or `sample_reference`."
        )
    group = tree["unconstrained_posterior"].to_dataset()
    if DATASET not in group.dims:  # of one dataset
        group = group.expand_dims(DATASET if DATASET in group.coords else {DATASET: ["0"]})
    return group


def _of_one(group: xr.Dataset, i: int) -> xr.Dataset:
    """Draws of one dataset, under its own labels and without padding, where it has such."""
    group = group.isel({DATASET: [i]})
    for dim in [str(d) for d in group.dims if f"{d}{LABEL}" in group.coords]:
        told = group[f"{dim}{LABEL}"]
        labels = (told[{DATASET: 0}] if DATASET in told.dims else told).values
        real = np.flatnonzero(labels != "")
        group = (
            group.drop_vars(f"{dim}{LABEL}").isel({dim: real}).assign_coords({dim: labels[real]})
        )
    return group


def _flat(group: xr.Dataset) -> tuple[np.ndarray, dict[str, tuple]]:
    """Draws of one dataset of shape (chain, draw, dim), and shapes."""
    parts, shapes = [], {}
    for name in sorted(map(str, group.data_vars)):
        value = group[name].transpose(*SAMPLE, ...)
        shapes[name] = value.shape[3:]
        parts.append(value.values.reshape(*value.shape[:2], -1))
    return np.concatenate(parts, axis=-1), shapes
