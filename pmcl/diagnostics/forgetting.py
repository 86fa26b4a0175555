"""Retention measured against references: the matrix of moments by tasks, in MMD."""

import warnings
from collections.abc import Mapping

import numpy as np
import xarray as xr

from pmcl.amortized.posterior import AmortizedPosterior
from pmcl.data.task import TaskLike
from pmcl.diagnostics.comparison import compare
from pmcl.metrics import transfer


def retention(
    posteriors: Mapping[str, AmortizedPosterior],
    tasks: Mapping[str, TaskLike],
    references: Mapping[str, xr.DataTree],
    *,
    draws: int = 1000,
    random_seed: int = 0,
) -> xr.Dataset:
    """Compare the network at every moment with the references of every task.

    Parameters
    ----------
    posteriors : mapping of str to AmortizedPosterior
        In their order in time: the pretrained one first, then the one after each task.
    tasks : mapping of str to data
        In their order in time; any datasets of the task, adapted to or not.
    references : mapping of str to xarray.DataTree
        From :func:`pmcl.sample_reference`, of the same datasets.
    draws : int
    random_seed : int

    Returns
    -------
    xarray.Dataset
        `mmd2`, `null_mmd2`, `bias_mean`, `bias_sd` and `khat` of dims (after, task): means over the
        datasets of a task, of the network's own draws without refinement. Attributes
        `backward_transfer` and `forward_transfer`, of the MMD, where there is a posterior for each
        task and one more.

    Raises
    ------
    ValueError
        Where a task has no reference, or a reference has other datasets.
    """
    missing = [n for n in tasks if n not in references]
    if missing:
        raise ValueError(f"retention: expected a reference for every task, {missing} have none.")
    names = ("mmd2", "null_mmd2", "bias_mean", "bias_sd")
    table = {n: np.full((len(posteriors), len(tasks)), np.nan) for n in (*names, "khat")}
    for i, posterior in enumerate(posteriors.values()):
        for j, (name, data) in enumerate(tasks.items()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # k-hat is in the table
                tree = posterior.sample(data, draws, refine=False, random_seed=random_seed)
            found = compare(tree, references[name], draws=draws, random_seed=random_seed)
            for measure in names:
                table[measure][i, j] = float(found[f"mean_{measure}"])
            table["khat"][i, j] = float(tree["dataset_stats"]["khat"].mean())
    matrix = xr.Dataset(
        {k: (("after", "task"), v) for k, v in table.items()},
        coords={"after": list(posteriors), "task": list(tasks)},
    )
    if len(posteriors) == len(tasks) + 1:
        moved = transfer(matrix["mmd2"].values)
        matrix.attrs |= {"backward_transfer": moved.backward, "forward_transfer": moved.forward}
    return matrix
