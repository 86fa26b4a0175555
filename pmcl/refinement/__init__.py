"""Refinement: a correction of each dataset's posterior that leaves the network alone."""

from pmcl.refinement.engine import FEWEST_STARTS, Refine, Refined, judge, poor, refine_task
from pmcl.refinement.stages import Drawn

__all__ = ["FEWEST_STARTS", "Drawn", "Refine", "Refined", "judge", "poor", "refine_task"]
