"""Reference posteriors: NUTS of the same PyMC model."""

from pmcl.reference.nuts import NutsDraws, nuts
from pmcl.reference.posterior import sample_reference

__all__ = ["NutsDraws", "nuts", "sample_reference"]
