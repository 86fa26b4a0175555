"""Objectives, strategies and the memory of continual adaptation."""

from pmcl.continual.adaptation import AdaptationRecord, AdaptationSettings, adapt
from pmcl.continual.memory import Memory, k_medoids
from pmcl.continual.objectives import (
    AbstractObjective,
    LogRatioVariance,
    ObjectiveValue,
    PathGradient,
)
from pmcl.continual.strategies import AbstractStrategy, Naive, Replay

__all__ = [
    "AbstractObjective",
    "AbstractStrategy",
    "AdaptationRecord",
    "AdaptationSettings",
    "LogRatioVariance",
    "Memory",
    "Naive",
    "ObjectiveValue",
    "PathGradient",
    "Replay",
    "adapt",
    "k_medoids",
]
