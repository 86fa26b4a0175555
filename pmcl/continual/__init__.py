"""Objectives, strategies and the memory of continual adaptation."""

from pmcl.continual.adaptation import AdaptationRecord, AdaptationSettings, adapt
from pmcl.continual.coverage import adapt_covering
from pmcl.continual.history import TaskRecord, history_tree, losses_frame
from pmcl.continual.judgement import Quality, quality
from pmcl.continual.objectives.objectives import (
    AbstractObjective,
    Example,
    LogRatioVariance,
    ObjectiveValue,
    PathGradient,
    Teaching,
)
from pmcl.continual.objectives.teacher import TeacherDistillation
from pmcl.continual.strategies.consolidation import (
    ElasticWeightConsolidation,
    OnlineLaplace,
    SynapticIntelligence,
)
from pmcl.continual.strategies.memory import Memory
from pmcl.continual.strategies.replay import Replay
from pmcl.continual.strategies.states import StrategyState, forgotten, memory_of
from pmcl.continual.strategies.strategy import (
    AbstractStrategy,
    Learned,
    Naive,
    Occasion,
    Rehearsal,
    StrategyLike,
    strategies_of,
)
from pmcl.continual.strategies.weight_importance import importance, weighted_distance

__all__ = [
    "AbstractObjective",
    "AbstractStrategy",
    "AdaptationRecord",
    "AdaptationSettings",
    "ElasticWeightConsolidation",
    "Example",
    "Learned",
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
    "adapt",
    "adapt_covering",
    "forgotten",
    "history_tree",
    "losses_frame",
    "importance",
    "memory_of",
    "quality",
    "strategies_of",
    "weighted_distance",
]
