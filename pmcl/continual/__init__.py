"""Objectives, strategies and the memory of continual adaptation."""

from pmcl.continual.adaptation import AdaptationRecord, AdaptationSettings, adapt, chunks
from pmcl.continual.memory import Memory, k_medoids
from pmcl.continual.objectives import (
    AbstractObjective,
    Density,
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
    "Density",
    "LogRatioVariance",
    "Memory",
    "Naive",
    "ObjectiveValue",
    "PathGradient",
    "Replay",
    "adapt",
    "chunks",
    "k_medoids",
]
