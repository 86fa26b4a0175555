"""Multilevel models: groups found in the model, their local parameters integrated out."""
