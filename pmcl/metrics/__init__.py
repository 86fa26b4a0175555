"""Arrays in, numbers out: how good posterior draws are, with nothing but NumPy arrays.

``importance`` asks the model's own density (no reference needed), ``discrepancy`` and
``classifier`` ask reference draws.
"""

from pmcl.metrics.calibration import coverage, learned, pit, tarp
from pmcl.metrics.change import alarm, apart, unlike
from pmcl.metrics.classifier import c2st
from pmcl.metrics.discrepancy import (
    agreement,
    median_squared_distance,
    mmd2_unbiased,
    null_mmd2,
    posterior_discrepancy,
    standardise,
)
from pmcl.metrics.evidence import (
    log_bayes_factors,
    model_frequencies,
    model_probabilities,
    trust_of,
)
from pmcl.metrics.importance import (
    FEWEST_DRAWS,
    ImportanceDiagnostics,
    importance_diagnostics,
    khat_threshold,
    resample,
)
from pmcl.metrics.retention import transfer

__all__ = [
    "FEWEST_DRAWS",
    "ImportanceDiagnostics",
    "agreement",
    "alarm",
    "apart",
    "c2st",
    "coverage",
    "importance_diagnostics",
    "khat_threshold",
    "log_bayes_factors",
    "learned",
    "median_squared_distance",
    "model_frequencies",
    "model_probabilities",
    "mmd2_unbiased",
    "null_mmd2",
    "pit",
    "posterior_discrepancy",
    "resample",
    "standardise",
    "tarp",
    "transfer",
    "trust_of",
    "unlike",
]
