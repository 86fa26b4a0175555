"""Published model definitions: found, checked, trained, described."""

from pmcl.models.card import card_of, check
from pmcl.models.definition import (
    ModelDefinition,
    ModelError,
    find,
    load,
    named,
    names,
    read,
)

__all__ = [
    "ModelDefinition",
    "ModelError",
    "card_of",
    "check",
    "find",
    "load",
    "named",
    "names",
    "read",
]
