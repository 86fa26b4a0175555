"""Reference posteriors: NUTS of the same PyMC model."""

from pmcl.reference.sample import sample_reference

__all__ = ["sample_reference"]
