"""Labelled diagnostics of results."""

from pmcl.report.calibration import calibrate
from pmcl.report.comparison import compare

__all__ = ["calibrate", "compare"]
