"""One page that says what a posterior is, what it was trained on, and how far to trust it."""

from pmcl.diagnostics.page.writing import report

__all__ = ["report"]
