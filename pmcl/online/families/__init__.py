"""Normals of z with covariances, and how one is found in tens of steps."""

from typing import Any

from pmcl.online.families.dense import Full
from pmcl.online.families.low_rank import LowRank
from pmcl.online.gaussian import MeanField

type AnyNormal = MeanField | Full | LowRank

FAMILIES: dict[str, Any] = {"mean_field": MeanField, "low_rank": LowRank, "full": Full}
LARGEST = {"full": 2000, "low_rank": 20_000}  # entries of z that `family="auto"` takes them for
