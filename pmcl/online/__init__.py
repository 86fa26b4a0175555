"""Variational inference on a model's own parameters as batches arrive."""

from pmcl.online.drift import (
    AbstractDrift,
    BayesianForgetting,
    OrnsteinUhlenbeck,
    Static,
    Wiener,
)
from pmcl.online.gaussian import Factor, MeanField, divergence, expectation
from pmcl.online.inference import Info, Problem, Settings, State, init, prepare, update
from pmcl.online.latent import Encoder
from pmcl.online.memory import (
    AbstractMemory,
    Candidates,
    KCenterCoreset,
    RandomCoreset,
    ResidualMemory,
    Stored,
)
from pmcl.online.projection import Search
from pmcl.online.rows import Rows
from pmcl.online.scale import prior_scale
from pmcl.online.start import AbstractStart, MaximumLikelihoodStart, ScatteredStart, Start

__all__ = [
    "AbstractDrift",
    "AbstractMemory",
    "AbstractStart",
    "BayesianForgetting",
    "Candidates",
    "Encoder",
    "Factor",
    "Info",
    "KCenterCoreset",
    "MaximumLikelihoodStart",
    "MeanField",
    "OrnsteinUhlenbeck",
    "Problem",
    "RandomCoreset",
    "ResidualMemory",
    "Rows",
    "ScatteredStart",
    "Search",
    "Settings",
    "Start",
    "State",
    "Static",
    "Stored",
    "Wiener",
    "divergence",
    "expectation",
    "init",
    "prepare",
    "prior_scale",
    "update",
]
