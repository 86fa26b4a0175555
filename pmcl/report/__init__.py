"""Labelled diagnostics of results."""

from pmcl.report.by_dataset import check_predictive, loo, psense
from pmcl.report.calibration import calibrate
from pmcl.report.checking import check_data
from pmcl.report.comparison import compare
from pmcl.report.forgetting import retention

__all__ = [
    "calibrate",
    "check_data",
    "check_predictive",
    "compare",
    "loo",
    "psense",
    "retention",
]
