"""One scanned training loop, and pretraining on simulations."""

from pmcl.training.bank import Bank, Simulated, bank_of
from pmcl.training.loop import (
    Optimiser,
    Problem,
    combine,
    gradient_of,
    weights_of,
)
from pmcl.training.pretraining import (
    PretrainingRecord,
    PretrainingSettings,
    negative_log_likelihood,
    pretrain,
)

__all__ = [
    "Bank",
    "Optimiser",
    "PretrainingRecord",
    "PretrainingSettings",
    "Problem",
    "Simulated",
    "bank_of",
    "combine",
    "gradient_of",
    "negative_log_likelihood",
    "pretrain",
    "weights_of",
]
