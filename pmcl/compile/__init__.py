"""PyMC model -> pure JAX functions and a simulator; what is refused, and why."""

from pmcl.compile.compiling import compile_model
from pmcl.compile.covariates import read_covariates
from pmcl.compile.density import Density
from pmcl.compile.mask import Mask, Masking
from pmcl.compile.model import CompiledModel
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.compile.reparametrisation import LocalLikelihood, localise
from pmcl.compile.simulator import Simulator, ahead, finite_fraction, make_simulator, prefetched
from pmcl.compile.variables import ValueSlice, VariableInfo

__all__ = [
    "CompiledModel",
    "Density",
    "LocalLikelihood",
    "Mask",
    "Masking",
    "Simulator",
    "UnsupportedModelError",
    "ValueSlice",
    "VariableInfo",
    "ahead",
    "compile_model",
    "finite_fraction",
    "localise",
    "make_simulator",
    "prefetched",
    "read_covariates",
]
