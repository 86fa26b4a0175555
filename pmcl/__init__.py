"""Continual amortized Bayesian inference for PyMC.

Write a PyMC model; :func:`fit_amortized` trains an amortized posterior on simulations from it,
``posterior.adapt(task)`` adapts it to real, unlabeled data, ``posterior.sample(data)`` draws.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pmcl import models as models
    from pmcl.caching import compilation_cache as compilation_cache
    from pmcl.compile import CompiledModel as CompiledModel
    from pmcl.compile import Simulator as Simulator
    from pmcl.compile import UnsupportedModelError as UnsupportedModelError
    from pmcl.compile import compile_model as compile_model
    from pmcl.continual import AbstractObjective as AbstractObjective
    from pmcl.continual import AbstractStrategy as AbstractStrategy
    from pmcl.continual import ElasticWeightConsolidation as ElasticWeightConsolidation
    from pmcl.continual import Example as Example
    from pmcl.continual import LogRatioVariance as LogRatioVariance
    from pmcl.continual import Memory as Memory
    from pmcl.continual import Naive as Naive
    from pmcl.continual import ObjectiveValue as ObjectiveValue
    from pmcl.continual import Occasion as Occasion
    from pmcl.continual import OnlineLaplace as OnlineLaplace
    from pmcl.continual import PathGradient as PathGradient
    from pmcl.continual import Rehearsal as Rehearsal
    from pmcl.continual import Replay as Replay
    from pmcl.continual import SynapticIntelligence as SynapticIntelligence
    from pmcl.continual import TeacherDistillation as TeacherDistillation
    from pmcl.continual import VariationalWeights as VariationalWeights
    from pmcl.data import DataError as DataError
    from pmcl.data import as_task as as_task
    from pmcl.fit import fit_amortized as fit_amortized
    from pmcl.fit_stream import fit_online as fit_online
    from pmcl.handover import as_prior as as_prior
    from pmcl.latent_stream import LatentPosterior as LatentPosterior
    from pmcl.networks import AbstractSummary as AbstractSummary
    from pmcl.networks import AbstractSummaryNetwork as AbstractSummaryNetwork
    from pmcl.networks import CouplingFlow as CouplingFlow
    from pmcl.networks import DeepSet as DeepSet
    from pmcl.networks import Flatten as Flatten
    from pmcl.networks import MaskedAutoregressiveFlow as MaskedAutoregressiveFlow
    from pmcl.networks import Network as Network
    from pmcl.networks import Recurrent as Recurrent
    from pmcl.networks import SetTransformer as SetTransformer
    from pmcl.networks.familiarity import FarDataWarning as FarDataWarning
    from pmcl.online import AbstractDrift as AbstractDrift
    from pmcl.online import AbstractMemory as AbstractMemory
    from pmcl.online import AbstractStart as AbstractStart
    from pmcl.online import BayesianForgetting as BayesianForgetting
    from pmcl.online import Encoder as Encoder
    from pmcl.online import KCenterCoreset as KCenterCoreset
    from pmcl.online import MaximumLikelihoodStart as MaximumLikelihoodStart
    from pmcl.online import OrnsteinUhlenbeck as OrnsteinUhlenbeck
    from pmcl.online import RandomCoreset as RandomCoreset
    from pmcl.online import ResidualMemory as ResidualMemory
    from pmcl.online import ScatteredStart as ScatteredStart
    from pmcl.online import Search as Search
    from pmcl.online import Start as Start
    from pmcl.online import Static as Static
    from pmcl.online import Wiener as Wiener
    from pmcl.online import prior_scale as prior_scale
    from pmcl.posterior import AmortizedPosterior as AmortizedPosterior
    from pmcl.reference import sample_reference as sample_reference
    from pmcl.refinement import Refine as Refine
    from pmcl.refining import refine as refine
    from pmcl.report import calibrate as calibrate
    from pmcl.report import check_data as check_data
    from pmcl.report import check_predictive as check_predictive
    from pmcl.report import compare as compare
    from pmcl.report import loo as loo
    from pmcl.report import plot_agreement as plot_agreement
    from pmcl.report import plot_khat_by_dataset as plot_khat_by_dataset
    from pmcl.report import plot_losses as plot_losses
    from pmcl.report import plot_memory as plot_memory
    from pmcl.report import plot_ratio as plot_ratio
    from pmcl.report import plot_retention as plot_retention
    from pmcl.report import psense as psense
    from pmcl.report import retention as retention
    from pmcl.results import one as one
    from pmcl.saving import load as load
    from pmcl.state import StateError as StateError
    from pmcl.stream import OnlinePosterior as OnlinePosterior

# Loaded when first used: importing pmcl costs little, and changes no flag of JAX or XLA.
_PUBLIC = {
    "AbstractDrift": "online",
    "AbstractStart": "online",
    "AbstractMemory": "online",
    "AbstractObjective": "continual",
    "AbstractStrategy": "continual",
    "AbstractSummary": "networks",
    "AbstractSummaryNetwork": "networks",
    "AmortizedPosterior": "posterior",
    "BayesianForgetting": "online",
    "CompiledModel": "compile",
    "CouplingFlow": "networks",
    "DataError": "data",
    "DeepSet": "networks",
    "ElasticWeightConsolidation": "continual",
    "Example": "continual",
    "FarDataWarning": "networks.familiarity",
    "Flatten": "networks",
    "Encoder": "online",
    "KCenterCoreset": "online",
    "LatentPosterior": "latent_stream",
    "LogRatioVariance": "continual",
    "MaskedAutoregressiveFlow": "networks",
    "MaximumLikelihoodStart": "online",
    "Memory": "continual",
    "Naive": "continual",
    "Network": "networks",
    "ObjectiveValue": "continual",
    "Occasion": "continual",
    "OnlineLaplace": "continual",
    "OnlinePosterior": "stream",
    "OrnsteinUhlenbeck": "online",
    "PathGradient": "continual",
    "RandomCoreset": "online",
    "Recurrent": "networks",
    "Refine": "refinement",
    "Rehearsal": "continual",
    "Replay": "continual",
    "ResidualMemory": "online",
    "ScatteredStart": "online",
    "Search": "online",
    "SetTransformer": "networks",
    "Simulator": "compile",
    "Start": "online",
    "StateError": "state",
    "Static": "online",
    "SynapticIntelligence": "continual",
    "TeacherDistillation": "continual",
    "VariationalWeights": "continual",
    "UnsupportedModelError": "compile",
    "Wiener": "online",
    "as_prior": "handover",
    "as_task": "data",
    "calibrate": "report",
    "check_data": "report",
    "check_predictive": "report",
    "compare": "report",
    "compilation_cache": "caching",
    "compile_model": "compile",
    "fit_amortized": "fit",
    "fit_online": "fit_stream",
    "load": "saving",
    "loo": "report",
    "one": "results",
    "plot_agreement": "report",
    "plot_khat_by_dataset": "report",
    "plot_losses": "report",
    "plot_memory": "report",
    "plot_ratio": "report",
    "plot_retention": "report",
    "prior_scale": "online",
    "psense": "report",
    "refine": "refining",
    "retention": "report",
    "sample_reference": "reference",
}

__all__ = [*sorted(_PUBLIC), "__version__"]


def __getattr__(name: str) -> object:
    if name == "models":
        return import_module("pmcl.models")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'pmcl' has no attribute {name!r}")
    value = getattr(import_module(f"pmcl.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "models"]
