"""Variational inference on a model's own parameters as batches arrive."""

from pmcl.online.drift import (
    AbstractDrift,
    BayesianForgetting,
    OrnsteinUhlenbeck,
    Static,
    Wiener,
)
from pmcl.online.gaussian import Factor, MeanField, divergence, expectation

__all__ = [
    "AbstractDrift",
    "BayesianForgetting",
    "Factor",
    "MeanField",
    "OrnsteinUhlenbeck",
    "Static",
    "Wiener",
    "divergence",
    "expectation",
]
