"""Arrays in, numbers out: how good posterior draws are, with nothing but NumPy arrays.

``importance`` asks the model's own density (no reference needed), ``discrepancy`` and
``classifier`` ask reference draws.
"""

from pmcl.metrics.alarm import Alarm, alarm, apart, unlike
from pmcl.metrics.calibration import Coverage, Learned, coverage, learned, pit, tarp
from pmcl.metrics.classifier import c2st
from pmcl.metrics.discrepancy import (
    Agreement,
    PosteriorDiscrepancy,
    agreement,
    median_squared_distance,
    mmd2_unbiased,
    null_mmd2,
    posterior_discrepancy,
    standardise,
)
from pmcl.metrics.importance import (
    FEWEST_DRAWS,
    ImportanceDiagnostics,
    IndependenceChain,
    importance_diagnostics,
    independence_chain,
    khat_threshold,
    resample,
)
from pmcl.metrics.retention import Transfer, transfer

__all__ = [
    "FEWEST_DRAWS",
    "Agreement",
    "Alarm",
    "Coverage",
    "ImportanceDiagnostics",
    "IndependenceChain",
    "Learned",
    "PosteriorDiscrepancy",
    "Transfer",
    "agreement",
    "alarm",
    "apart",
    "c2st",
    "coverage",
    "importance_diagnostics",
    "independence_chain",
    "khat_threshold",
    "learned",
    "median_squared_distance",
    "mmd2_unbiased",
    "null_mmd2",
    "pit",
    "posterior_discrepancy",
    "resample",
    "standardise",
    "tarp",
    "transfer",
    "unlike",
]
