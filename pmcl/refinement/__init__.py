"""Refinement: a correction of each dataset's posterior that leaves the network alone."""

from pmcl.refinement.settings import FEWEST_STARTS, Asked, Beginning, Refine

__all__ = [
    "FEWEST_STARTS",
    "Asked",
    "Beginning",
    "Refine",
]
