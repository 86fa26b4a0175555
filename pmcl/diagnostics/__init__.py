"""Labelled diagnostics of results."""

from pmcl.diagnostics.by_dataset import check_predictive, loo, psense
from pmcl.diagnostics.calibration import calibrate
from pmcl.diagnostics.checking import check_data
from pmcl.diagnostics.comparison import compare
from pmcl.diagnostics.confusion import model_recovery, plot_model_recovery
from pmcl.diagnostics.discrete import recover_discrete
from pmcl.diagnostics.forgetting import retention
from pmcl.diagnostics.hyperparameters import plot_sensitivity, sensitivity
from pmcl.diagnostics.model_choice import compare_models
from pmcl.diagnostics.monitoring import monitor
from pmcl.diagnostics.page import report
from pmcl.diagnostics.plots import (
    plot_agreement,
    plot_khat_by_dataset,
    plot_losses,
    plot_memory,
    plot_ratio,
    plot_retention,
)

__all__ = [
    "calibrate",
    "check_data",
    "check_predictive",
    "compare",
    "compare_models",
    "loo",
    "model_recovery",
    "monitor",
    "plot_agreement",
    "plot_khat_by_dataset",
    "plot_losses",
    "plot_memory",
    "plot_model_recovery",
    "plot_ratio",
    "plot_retention",
    "plot_sensitivity",
    "psense",
    "recover_discrete",
    "report",
    "retention",
    "sensitivity",
]
