"""From amortized draws to a posterior's final draws: refined, reweighted, NUTS where asked."""

import time
from typing import Literal, NamedTuple

import jax
import numpy as np
import xarray as xr

from pmcl import sampling
from pmcl.compile import CompiledModel, Density, precision
from pmcl.data import Task
from pmcl.fallback import by_nuts
from pmcl.metrics import FEWEST_DRAWS, ImportanceDiagnostics, khat_threshold
from pmcl.networks import Amortizer
from pmcl.prediction import Extra, extra_groups
from pmcl.refinement import FEWEST_STARTS, Drawn, Refine, judge, poor, refine_task
from pmcl.results import Draws, posterior_tree

type RefineLike = Refine | bool | Literal["auto"]
type CorrectLike = Literal["auto", "psis", "imh"] | None
type FallbackLike = Literal["nuts"] | None


class Corrected(NamedTuple):
    """Final draws, their diagnostics before resampling, and what was done to each dataset."""

    drawn: Drawn
    diagnostics: ImportanceDiagnostics
    log_weights: np.ndarray
    dataset_stats: dict[str, np.ndarray]


def settings_of(refine: RefineLike) -> Refine | None:
    """Read the argument `refine` of `sample`; None: no refinement.

    Raises
    ------
    ValueError
    """
    if isinstance(refine, Refine):
        return refine
    if refine is False:
        return None
    if refine is True or refine == "auto":
        return Refine()
    raise ValueError(f"refine: expected True, False, 'auto' or a pmcl.Refine, got {refine!r}.")


def way_of(
    correct: CorrectLike, fallback: FallbackLike, draws: int, *, refined: bool
) -> CorrectLike:
    """Read the arguments `correct` and `fallback` of `sample`.

    Raises
    ------
    ValueError
    """
    if correct not in ("auto", "psis", "imh", None):
        raise ValueError(f"correct: expected 'auto', 'psis', 'imh' or None, got {correct!r}.")
    if fallback not in ("nuts", None):
        raise ValueError(f"fallback: expected 'nuts' or None, got {fallback!r}.")
    if fallback is not None and draws < FEWEST_DRAWS:
        raise ValueError(
            f"draws: with a fallback expected at least {FEWEST_DRAWS}, as of fewer k-hat cannot be "
            f"told, got {draws}."
        )
    if correct == "auto":
        return "psis" if refined else None
    return correct


def correct(
    density: Density,
    amortizer: Amortizer | None,
    task: Task,
    drawn: Drawn | None,
    settings: Refine | None,
    *,
    everywhere: bool,
    start: np.ndarray,
    centre: np.ndarray,
    spread: np.ndarray,
    draws: int,
    way: CorrectLike,
    fallback: FallbackLike,
    seed: int,
    progressbar: bool,
) -> Corrected:
    """Refine the datasets that need it, make draws count alike, and sample by NUTS what is left.

    Parameters
    ----------
    density, amortizer, task
    drawn : Drawn, optional
        Amortized draws; None where there is no network.
    settings : Refine, optional
        None: nothing is refined.
    everywhere : bool
        Refine every dataset, not only those whose amortized posterior is poor.
    start, centre, spread, draws
        As in :func:`pmcl.refinement.refine_task`.
    way : {"psis", "imh", None}
        How draws come to count alike: resampled by smoothed weights, or by a Markov chain. None:
        they do not.
    fallback : {"nuts", None}
        What samples the datasets whose k-hat is too high.
    seed : int
    progressbar : bool
    """
    n, limit = len(task), khat_threshold(max(draws, 2))
    stats: dict[str, np.ndarray] = {
        "engine": np.full(n, "amortized", dtype=object),
        "steps": np.zeros(n, int),
        "search_steps": np.zeros(n, int),
        "modes": np.zeros(n, int),
        "gradients": np.zeros(n, int),
        "note": np.full(n, "", dtype=object),
    }
    before = diagnostics = None if drawn is None else judge(drawn)
    if settings is not None:
        which = np.arange(n)
        if before is not None and not everywhere:
            which = poor(before, settings, draws)
            stats["note"][np.setdiff1d(np.arange(n), which)] = "good as it is"
        if len(which):
            found = refine_task(
                density,
                amortizer,
                task,
                start,
                centre,
                spread,
                settings,
                draws=draws,
                seed=seed,
                which=which,
                progressbar=progressbar,
            )
            after = judge(found.drawn)
            note = found.note
            if before is None or drawn is None:
                drawn, diagnostics = found.drawn, after
                use = np.ones(n, bool)
            else:
                worse = (after.khat > limit) & (before.khat[which] < after.khat)
                use = ~worse & np.isfinite(after.efficiency) & (after.efficiency > 0)
                drawn = _replaced(drawn, found.drawn, which, use)
                diagnostics = _replaced(before, after, which, use)
                note = np.where(use, note, _joined(note, "refinement did not help"))
            stats["engine"][which[use]] = found.engine[use]
            stats["note"][which] = note
            stats["steps"][which] = found.local_steps
            stats["search_steps"][which] = found.search_steps
            stats["modes"][which] = found.modes
            stats["gradients"][which] = found.gradients
    assert drawn is not None and diagnostics is not None
    log_weights = diagnostics.log_weights
    if before is not None:
        stats["khat_amortized"] = before.khat
        stats["efficiency_amortized"] = before.efficiency
    # With so few draws k-hat cannot be computed, which says nothing of the posterior.
    high = (diagnostics.khat > limit) & (draws >= FEWEST_DRAWS)
    text = np.char.add(np.char.mod("k-hat %.2f is above ", diagnostics.khat), f"{limit:.2f}")
    stats["warning"] = np.where(high, text, "").astype(object)
    best = drawn
    if way is not None:
        usable = diagnostics.finite_fraction > 0
        if way == "psis" and before is not None:
            # Weights that cannot be trusted would put all on a few draws.
            loose = usable & (diagnostics.khat > 1.0)
            usable &= ~loose
            if fallback is None and draws >= FEWEST_DRAWS:
                kept = _joined(stats["note"][loose], "k-hat is above 1: draws keep their weights")
                stats["note"][loose] = kept
        which = np.flatnonzero(usable)
        if way == "psis":
            drawn = sampling.resampled(drawn, log_weights, which, seed=seed, first=task.first)
        else:
            drawn, stats["acceptance_rate"] = sampling.chained(
                drawn, which, seed=seed, first=task.first
            )
        log_weights = np.array(log_weights)
        log_weights[which] = -np.log(drawn.z.shape[1])
    if fallback is not None:
        which = np.flatnonzero(high | (diagnostics.finite_fraction == 0))
        drawn, log_weights = _fallen(
            density.compiled,
            task,
            best,
            drawn,
            diagnostics.log_weights,
            log_weights,
            stats,
            which,
            seed,
            progressbar,
        )
    stats = {k: v.astype(str) if v.dtype == object else v for k, v in stats.items()}
    return Corrected(drawn, diagnostics, log_weights, stats)


def finished(
    compiled: CompiledModel, task: Task, corrected: Corrected, names: tuple[str, ...], begin: float
) -> Draws:
    """Name the variables of final draws; `begin` is the clock when sampling began."""
    constrained = sampling.constrain(compiled, corrected.drawn.z, task, names)
    return sampling.assemble(
        corrected.drawn,
        corrected.diagnostics,
        constrained,
        corrected.dataset_stats,
        log_weights=corrected.log_weights,
        seconds=time.perf_counter() - begin,
    )


def engine_of(draws: Draws) -> str:
    """Engines of a result, for its attributes."""
    return ", ".join(sorted(set(map(str, draws.dataset_stats["engine"]))))


def _fallen(
    compiled: CompiledModel,
    task: Task,
    best: Drawn,
    drawn: Drawn,
    smoothed: np.ndarray,
    log_weights: np.ndarray,
    stats: dict[str, np.ndarray],
    which: np.ndarray,
    seed: int,
    progressbar: bool,
) -> tuple[Drawn, np.ndarray]:
    """Put draws of NUTS in the places of the datasets `which`, and its diagnostics in `stats`."""
    n, draws = drawn.log_prior.shape
    stats |= {k: np.full(n, np.nan) for k in ("rhat", "ess", "divergences")}
    if not len(which):
        return drawn, log_weights
    # By weight, whatever k-hat: these are the best there are, for a start and a metric.
    start = sampling.resampled(best, smoothed, which, seed=seed, first=task.first).z[which]
    fallen = by_nuts(
        compiled, task, start, which,
        draws=draws, seed=seed, progressbar=progressbar,
    )  # fmt: skip
    # Where NUTS failed the draws stay those of before, with their k-hat's warning and its own.
    use = np.isfinite(fallen.drawn.z).all(axis=(1, 2))
    drawn = _replaced(drawn, fallen.drawn, which, use)
    done, failed = which[use], which[~use]
    log_weights = np.array(log_weights)
    log_weights[done] = -np.log(draws)
    for name in ("rhat", "ess", "divergences"):
        stats[name][done] = getattr(fallen, name)[use]
    stats["gradients"][done] += fallen.gradients[use]
    stats["engine"][done] = "nuts"
    stats["note"][done] = _joined(stats["note"][done], "k-hat of importance sampling is too high")
    stats["warning"][done] = fallen.warning[use]
    stats["warning"][failed] = _joined(stats["warning"][failed], fallen.warning[~use])
    return drawn, log_weights


class Asked(NamedTuple):
    """What a user asked `sample` for; see there."""

    draws: int
    refine: RefineLike
    names: tuple[str, ...]
    seed: int
    correct: CorrectLike = "auto"
    fallback: FallbackLike = None
    extra: Extra = Extra()


def sample_task(
    amortizer: Amortizer,
    density: Density,
    task: Task,
    asked: Asked,
    *,
    progressbar: bool,
) -> xr.DataTree:
    """Draw from the posterior of every dataset of a task, all in memory."""
    begin = time.perf_counter()
    compiled, settings = density.compiled, settings_of(asked.refine)
    way = way_of(asked.correct, asked.fallback, asked.draws, refined=settings is not None)
    # Means and covariances of the network's posterior need a number of draws.
    n = max(asked.draws, FEWEST_STARTS if settings else 1)
    with precision.scope():
        start = sampling.draw(
            amortizer, density, task, draws=n, seed=asked.seed, progressbar=progressbar
        )
        corrected = correct(
            density,
            amortizer,
            task,
            Drawn(*(v[:, : asked.draws] for v in start)),
            settings,
            everywhere=not isinstance(asked.refine, str),
            start=start.z,
            centre=np.asarray(amortizer.z_scaling.loc, float),
            spread=np.asarray(amortizer.z_scaling.scale, float),
            draws=asked.draws,
            way=way,
            fallback=asked.fallback,
            seed=asked.seed,
            progressbar=progressbar,
        )
        found = finished(compiled, task, corrected, asked.names, begin)
        z = np.asarray(corrected.drawn.z)
        extra = extra_groups(compiled, task, z, asked.extra, seed=asked.seed)
    return posterior_tree(compiled, task, found, engine=engine_of(found), extra=extra)


def _replaced[T](old: T, new: T, which: np.ndarray, use: np.ndarray) -> T:
    """Put the rows `use` of `new`, which are the rows `which` of `old`, in their places."""

    def one(before: np.ndarray, after: np.ndarray) -> np.ndarray:
        found = np.array(before)
        found[which[use]] = after[use]
        return found

    return jax.tree.map(one, old, new)


def _joined(notes: np.ndarray, more: str | np.ndarray) -> np.ndarray:
    pairs = zip(notes, np.broadcast_to(more, len(notes)), strict=True)
    return np.array([f"{n}; {m}" if n else str(m) for n, m in pairs], dtype=object)
