"""Variational inference on a model's own parameters as batches arrive."""

from pmcl.online.drift import (
    AbstractDrift,
    BayesianForgetting,
    ChangePoint,
    LearnedDrift,
    OrnsteinUhlenbeck,
    Static,
    Wiener,
)
from pmcl.online.families.dense import Full
from pmcl.online.families.low_rank import LowRank
from pmcl.online.families.search import GaussNewton
from pmcl.online.gaussian import Factor, MeanField, divergence, expectation
from pmcl.online.latent.encoder import Encoder
from pmcl.online.memory import (
    AbstractMemory,
    KCenterCoreset,
    RandomCoreset,
    ResidualMemory,
)
from pmcl.online.rows import Rows
from pmcl.online.scale import prior_scale
from pmcl.online.search.search import Search
from pmcl.online.search.start import AbstractStart, MaximumLikelihoodStart, ScatteredStart, Start
from pmcl.online.step import update

__all__ = [
    "AbstractDrift",
    "AbstractMemory",
    "AbstractStart",
    "BayesianForgetting",
    "ChangePoint",
    "Encoder",
    "Factor",
    "Full",
    "GaussNewton",
    "KCenterCoreset",
    "LearnedDrift",
    "LowRank",
    "MaximumLikelihoodStart",
    "MeanField",
    "OrnsteinUhlenbeck",
    "RandomCoreset",
    "ResidualMemory",
    "Rows",
    "ScatteredStart",
    "Search",
    "Start",
    "Static",
    "Wiener",
    "divergence",
    "expectation",
    "prior_scale",
    "update",
]
