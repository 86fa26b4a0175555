"""The one exception of reading and writing states."""


class StateError(ValueError):
    """A state that cannot be written, or a file that is not a state or not of this model."""
