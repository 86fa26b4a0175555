from . import models as models
from .amortized.fit import fit_amortized as fit_amortized
from .amortized.multilevel import MultilevelPosterior as MultilevelPosterior
from .amortized.posterior import AmortizedPosterior as AmortizedPosterior
from .amortized.prior import as_prior as as_prior
from .archive import StateError as StateError
from .archive.files import load as load
from .archive.files import save as save
from .compile import CompiledModel as CompiledModel
from .compile import Simulator as Simulator
from .compile import UnsupportedModelError as UnsupportedModelError
from .compile import compile_model as compile_model
from .continual import AbstractObjective as AbstractObjective
from .continual import AbstractStrategy as AbstractStrategy
from .continual import ElasticWeightConsolidation as ElasticWeightConsolidation
from .continual import Example as Example
from .continual import LogRatioVariance as LogRatioVariance
from .continual import Memory as Memory
from .continual import Naive as Naive
from .continual import ObjectiveValue as ObjectiveValue
from .continual import Occasion as Occasion
from .continual import OnlineLaplace as OnlineLaplace
from .continual import PathGradient as PathGradient
from .continual import Rehearsal as Rehearsal
from .continual import Replay as Replay
from .continual import SynapticIntelligence as SynapticIntelligence
from .continual import TeacherDistillation as TeacherDistillation
from .data.reading import as_task as as_task
from .data.task import DataError as DataError
from .diagnostics import calibrate as calibrate
from .diagnostics import check_data as check_data
from .diagnostics import check_predictive as check_predictive
from .diagnostics import compare as compare
from .diagnostics import compare_models as compare_models
from .diagnostics import loo as loo
from .diagnostics import model_recovery as model_recovery
from .diagnostics import monitor as monitor
from .diagnostics import plot_agreement as plot_agreement
from .diagnostics import plot_khat_by_dataset as plot_khat_by_dataset
from .diagnostics import plot_losses as plot_losses
from .diagnostics import plot_memory as plot_memory
from .diagnostics import plot_model_recovery as plot_model_recovery
from .diagnostics import plot_ratio as plot_ratio
from .diagnostics import plot_retention as plot_retention
from .diagnostics import plot_sensitivity as plot_sensitivity
from .diagnostics import psense as psense
from .diagnostics import recover_discrete as recover_discrete
from .diagnostics import report as report
from .diagnostics import retention as retention
from .diagnostics import sensitivity as sensitivity
from .draws.results import one as one
from .networks import AbstractSummary as AbstractSummary
from .networks import AbstractSummaryNetwork as AbstractSummaryNetwork
from .networks import CouplingFlow as CouplingFlow
from .networks import DeepSet as DeepSet
from .networks import Flatten as Flatten
from .networks import MaskedAutoregressiveFlow as MaskedAutoregressiveFlow
from .networks import Network as Network
from .networks import Recurrent as Recurrent
from .networks import SetTransformer as SetTransformer
from .networks.familiarity import FarDataWarning as FarDataWarning
from .online import AbstractDrift as AbstractDrift
from .online import AbstractMemory as AbstractMemory
from .online import AbstractStart as AbstractStart
from .online import BayesianForgetting as BayesianForgetting
from .online import ChangePoint as ChangePoint
from .online import Encoder as Encoder
from .online import GaussNewton as GaussNewton
from .online import KCenterCoreset as KCenterCoreset
from .online import LearnedDrift as LearnedDrift
from .online import MaximumLikelihoodStart as MaximumLikelihoodStart
from .online import OrnsteinUhlenbeck as OrnsteinUhlenbeck
from .online import RandomCoreset as RandomCoreset
from .online import ResidualMemory as ResidualMemory
from .online import ScatteredStart as ScatteredStart
from .online import Search as Search
from .online import Start as Start
from .online import Static as Static
from .online import Wiener as Wiener
from .online import prior_scale as prior_scale
from .online.fit import fit_online as fit_online
from .online.latent_posterior import LatentPosterior as LatentPosterior
from .online.mixture import OnlineMixture as OnlineMixture
from .online.posterior import OnlinePosterior as OnlinePosterior
from .reference import sample_reference as sample_reference
from .reference.warm_start import WarmStart as WarmStart
from .reference.warm_start import warm_start as warm_start
from .refinement import Refine as Refine
from .refinement.standalone import refine as refine
from .runtime.caching import compilation_cache as compilation_cache

__version__: str

__all__ = [
    "__version__",
    "AbstractDrift",
    "AbstractMemory",
    "AbstractObjective",
    "AbstractStart",
    "AbstractStrategy",
    "AbstractSummary",
    "AbstractSummaryNetwork",
    "AmortizedPosterior",
    "BayesianForgetting",
    "ChangePoint",
    "CompiledModel",
    "CouplingFlow",
    "DataError",
    "DeepSet",
    "ElasticWeightConsolidation",
    "Encoder",
    "Example",
    "FarDataWarning",
    "Flatten",
    "GaussNewton",
    "KCenterCoreset",
    "LatentPosterior",
    "LearnedDrift",
    "LogRatioVariance",
    "MaskedAutoregressiveFlow",
    "MaximumLikelihoodStart",
    "Memory",
    "MultilevelPosterior",
    "Naive",
    "Network",
    "ObjectiveValue",
    "Occasion",
    "OnlineLaplace",
    "OnlineMixture",
    "OnlinePosterior",
    "OrnsteinUhlenbeck",
    "PathGradient",
    "RandomCoreset",
    "Recurrent",
    "Refine",
    "Rehearsal",
    "Replay",
    "ResidualMemory",
    "ScatteredStart",
    "Search",
    "SetTransformer",
    "Simulator",
    "Start",
    "StateError",
    "Static",
    "SynapticIntelligence",
    "TeacherDistillation",
    "UnsupportedModelError",
    "WarmStart",
    "Wiener",
    "as_prior",
    "as_task",
    "calibrate",
    "check_data",
    "check_predictive",
    "compare",
    "compare_models",
    "compilation_cache",
    "compile_model",
    "fit_amortized",
    "fit_online",
    "load",
    "loo",
    "model_recovery",
    "monitor",
    "one",
    "plot_agreement",
    "plot_khat_by_dataset",
    "plot_losses",
    "plot_memory",
    "plot_model_recovery",
    "plot_ratio",
    "plot_retention",
    "plot_sensitivity",
    "prior_scale",
    "psense",
    "recover_discrete",
    "refine",
    "report",
    "retention",
    "sample_reference",
    "save",
    "sensitivity",
    "warm_start",
]
