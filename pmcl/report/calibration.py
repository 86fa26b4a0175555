"""Simulation-based calibration of an amortized posterior, in ArviZ's form."""

import warnings

import numpy as np
import xarray as xr

from pmcl import sampling
from pmcl.compile import precision
from pmcl.correction import RefineLike
from pmcl.data import Task
from pmcl.metrics.calibration import pit
from pmcl.posterior import AmortizedPosterior, positive, seed_of
from pmcl.results import labelled
from pmcl.simulation import simulated_task


def calibrate(
    posterior: AmortizedPosterior,
    *,
    simulations: int = 500,
    draws: int = 200,
    refine: RefineLike = False,
    var_names: list[str] | None = None,
    random_seed: int | None = None,
    progressbar: bool = True,
) -> xr.DataTree:
    """Simulation-based calibration: is the truth anywhere among the draws with equal probability?

    Parameters
    ----------
    posterior : AmortizedPosterior
    simulations : int
        Datasets drawn from the model's joint, of the lengths and with the gaps of training.
    draws : int
        Posterior draws for each.
    refine : bool, "auto" or Refine
        False: the network as it is; else what `sample` gives with refinement.
    var_names : list of str, optional
        All free variables and deterministics by default.
    random_seed : int, optional
    progressbar : bool

    Returns
    -------
    xarray.DataTree
        Group `prior_sbc`: values in (0, 1), uniform where the posterior is calibrated, one `draw`
        for each simulation (``arviz_plots.plot_ecdf_pit(tree)`` draws them). Group `uniformity`:
        for each variable the p-value of ArviZ's test of it. Group `dataset_stats`: as in `sample`.

    References
    ----------
    Talts et al. (2018), Validating Bayesian inference algorithms with simulation-based calibration.
    """
    from arviz_stats.base import array_stats

    seed = seed_of(random_seed, posterior.seed + 1)
    compiled = posterior.compiled
    names = sampling.pick(compiled, var_names)
    with precision.scope():
        z, task = simulated_task(
            posterior.simulator,
            posterior.structure.row,
            positive("simulations", simulations),
            random_seed=seed,
        )
        truth = sampling.constrain(compiled, z[:, None], task, names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # each k-hat is in the result
        tree = posterior.sample(
            task,
            draws,
            refine=refine,
            var_names=names,
            random_seed=seed + 1,
            progressbar=progressbar,
        )
    rng = np.random.default_rng(seed)
    infos = {i.name: i for i in (*compiled.free, *compiled.deterministics)}
    drawn = tree["posterior"].to_dataset()
    values = {
        name: pit(np.moveaxis(drawn[name].values[0], 1, 0), truth[name][:, 0], rng)
        for name in names
    }
    like = Task(posterior.layout, {}, ("simulation",), None)
    sbc = labelled(
        compiled, like, infos, {k: v[None] for k, v in values.items()}, ("chain", "draw")
    )
    tests = {
        name: np.asarray(array_stats.uniformity_test(value, axis=0)[0])
        for name, value in values.items()
    }
    uniformity = labelled(compiled, like, infos, tests, ())
    return xr.DataTree.from_dict(
        {
            "prior_sbc": sbc.drop_vars("dataset", errors="ignore").assign_coords(
                chain=[0], draw=np.arange(len(z))
            ),
            "uniformity": uniformity.drop_vars("dataset", errors="ignore"),
            "dataset_stats": tree["dataset_stats"].to_dataset(),
        }
    )
