"""One scanned training loop, and pretraining on simulations."""

from pmcl.training.checkpoint import read_checkpoint, write_checkpoint
from pmcl.training.loop import (
    LoopState,
    Optimiser,
    Problem,
    combine,
    gradient_of,
    run_block,
    start,
    weights_of,
)
from pmcl.training.pretraining import (
    PretrainingRecord,
    PretrainingSettings,
    Simulated,
    negative_log_likelihood,
    pretrain,
    simulation_hosts,
    simulation_loss,
)

__all__ = [
    "LoopState",
    "Optimiser",
    "PretrainingRecord",
    "PretrainingSettings",
    "Simulated",
    "Problem",
    "combine",
    "gradient_of",
    "negative_log_likelihood",
    "simulation_loss",
    "pretrain",
    "read_checkpoint",
    "run_block",
    "simulation_hosts",
    "start",
    "weights_of",
    "write_checkpoint",
]
