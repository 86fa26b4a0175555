"""Labelled diagnostics of results."""

from pmcl.report.compare import compare

__all__ = ["compare"]
