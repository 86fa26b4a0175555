"""How far the proposals of single groups can be trusted."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pmcl.compile import CompiledModel
from pmcl.levels.naming import group_name
from pmcl.levels.structure import Levels
from pmcl.metrics import importance_diagnostics, khat_threshold, resample


class ByGroup(NamedTuple):
    """Of each dataset: the largest k-hat of a group's weights, that group, and what is wrong."""

    khat: np.ndarray
    name: np.ndarray
    warning: np.ndarray


def chosen(
    z: np.ndarray, log_weight: np.ndarray, seeds: Sequence[tuple[int, ...]], number: int
) -> np.ndarray:
    """So many draws of each dataset by weight: (dataset, number, dim) of (dataset, draw, dim)."""
    pairs = zip(log_weight, seeds, strict=True)
    which = [resample(w, number, np.random.default_rng(seed)) for w, seed in pairs]
    return z[np.arange(len(z))[:, None], np.stack(which)]


def by_group(
    compiled: CompiledModel,
    levels: Levels,
    place: np.ndarray,
    groups: np.ndarray,
    log_weight: np.ndarray,
) -> ByGroup:
    """Judge the weights of some groups of each dataset.

    Parameters
    ----------
    compiled : CompiledModel
    levels : Levels
    place : array of int of shape (dataset,)
        The datasets' places among all that the levels are of.
    groups : array of int of shape (dataset, number)
    log_weight : array of shape (dataset, number, proposal)
    """
    each = importance_diagnostics(log_weight.reshape(-1, log_weight.shape[-1])).khat
    each = each.reshape(groups.shape)
    worst = np.argmax(each, axis=1)
    every = np.arange(len(groups))
    khat, which = each[every, worst], groups[every, worst]
    pairs = zip(place, which, strict=True)
    names = np.array([group_name(compiled, levels, int(i), int(j)) for i, j in pairs], object)
    what = "" if levels.split.block else "group "
    text = [f"k-hat of the proposals of {what}{n} is {k:.2f}" for n, k in zip(names, khat)]  # noqa: B905
    limit = khat_threshold(log_weight.shape[-1])
    return ByGroup(khat, names, np.where(khat > limit, np.array(text, object), ""))
