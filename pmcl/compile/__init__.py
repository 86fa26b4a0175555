"""PyMC model -> pure JAX functions and a simulator; what is refused, and why."""

from pmcl.compile.covariates import Covariates, read_covariates
from pmcl.compile.density import Density
from pmcl.compile.jitting import compiling, compiling_for, jit
from pmcl.compile.local import LocalLikelihood, localise
from pmcl.compile.mask import Mask, Masking
from pmcl.compile.model import CompiledModel, ValueSlice, VariableInfo, compile_model
from pmcl.compile.refuse import UnsupportedModelError
from pmcl.compile.simulator import Simulator, ahead, finite_fraction, make_simulator, prefetched

__all__ = [
    "CompiledModel",
    "Covariates",
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
    "compiling",
    "compiling_for",
    "finite_fraction",
    "jit",
    "localise",
    "make_simulator",
    "prefetched",
    "read_covariates",
]
