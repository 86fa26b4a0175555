"""Summary networks, the conditional flow and the amortizer that joins them."""

from pmcl.networks.amortizer import Amortizer, Network, build_amortizer
from pmcl.networks.flow import AbstractFlow, CouplingFlow, MaskedAutoregressiveFlow
from pmcl.networks.inputs import InputLayout, Scaling
from pmcl.networks.structure import Structure, default_network, read_structure
from pmcl.networks.summary import (
    AbstractSummary,
    AbstractSummaryNetwork,
    DeepSet,
    Flatten,
    Recurrent,
    SetTransformer,
)

__all__ = [
    "AbstractFlow",
    "AbstractSummary",
    "AbstractSummaryNetwork",
    "Amortizer",
    "CouplingFlow",
    "DeepSet",
    "Flatten",
    "InputLayout",
    "MaskedAutoregressiveFlow",
    "Network",
    "Recurrent",
    "Scaling",
    "SetTransformer",
    "Structure",
    "build_amortizer",
    "default_network",
    "read_structure",
]
