"""Objectives, strategies and the memory of continual adaptation."""

from pmcl.continual.adaptation import AdaptationRecord, AdaptationSettings, adapt
from pmcl.continual.consolidation import (
    ElasticWeightConsolidation,
    OnlineLaplace,
    SynapticIntelligence,
)
from pmcl.continual.coverage import adapt_covering
from pmcl.continual.history import TaskRecord, history_tree
from pmcl.continual.importance import importance, weighted_distance
from pmcl.continual.memory import Memory, k_centers, k_medoids
from pmcl.continual.monitoring import Quality, quality, quality_of_memory
from pmcl.continual.objectives import (
    AbstractObjective,
    Example,
    Labels,
    LogRatioVariance,
    ObjectiveValue,
    PathGradient,
    Teaching,
)
from pmcl.continual.states import StrategyState, carried, forgotten, memory_of, stored
from pmcl.continual.strategies import (
    AbstractStrategy,
    Naive,
    Occasion,
    Rehearsal,
    Replay,
    StrategyLike,
    strategies_of,
)
from pmcl.continual.teacher import TeacherDistillation
from pmcl.continual.variational import VariationalWeights

__all__ = [
    "AbstractObjective",
    "AbstractStrategy",
    "AdaptationRecord",
    "AdaptationSettings",
    "ElasticWeightConsolidation",
    "Example",
    "Labels",
    "LogRatioVariance",
    "Memory",
    "Naive",
    "ObjectiveValue",
    "Occasion",
    "OnlineLaplace",
    "PathGradient",
    "Quality",
    "Rehearsal",
    "Replay",
    "StrategyLike",
    "StrategyState",
    "SynapticIntelligence",
    "TaskRecord",
    "TeacherDistillation",
    "Teaching",
    "VariationalWeights",
    "adapt",
    "adapt_covering",
    "carried",
    "forgotten",
    "history_tree",
    "importance",
    "k_centers",
    "k_medoids",
    "memory_of",
    "quality",
    "quality_of_memory",
    "stored",
    "strategies_of",
    "weighted_distance",
]
