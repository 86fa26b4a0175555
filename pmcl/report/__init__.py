"""Labelled diagnostics of results."""

from pmcl.report.by_dataset import check_predictive, loo, psense
from pmcl.report.calibration import calibrate
from pmcl.report.checking import check_data
from pmcl.report.comparison import compare
from pmcl.report.forgetting import retention
from pmcl.report.plots import (
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
    "loo",
    "plot_agreement",
    "plot_khat_by_dataset",
    "plot_losses",
    "plot_memory",
    "plot_ratio",
    "plot_retention",
    "psense",
    "retention",
]
