"""Checkpoints of a run: written whole or not at all, and read by the run that wrote them only."""

import json
from pathlib import Path

import equinox as eqx

from pmcl.runtime.devices import writes
from pmcl.runtime.files import written_whole


def write_checkpoint[T](path: Path, label: dict, now: T) -> None:
    """Write a pytree of arrays and what tells its run from others; in the first process."""
    if not writes():
        return
    with written_whole(path) as file:
        file.write((json.dumps(label) + "\n").encode())
        eqx.tree_serialise_leaves(file, now)


def read_checkpoint[T](path: Path, label: dict, like: T) -> T:
    """Read a checkpoint into a pytree of the same structure.

    Raises
    ------
    ValueError
        Where the file is no checkpoint, or that of another run, saying what differs.
    """
    with path.open("rb") as file:
        try:
            found = json.loads(file.readline(1_000_000))
        except ValueError as error:
            raise ValueError(
                f"checkpoint {str(path)!r}: the file is not a checkpoint of pmcl. Give another "
                "path."
            ) from error
        differ = [k for k in label if found.get(k) != label[k]]
        if differ:
            raise ValueError(
                f"checkpoint {str(path)!r} belongs to another run: expected "
                f"{ {k: label[k] for k in differ} }, got { {k: found.get(k) for k in differ} }. "
                "Delete it, or give another path."
            )
        try:
            return eqx.tree_deserialise_leaves(file, like)
        except Exception as error:  # whatever a damaged file may hold
            raise ValueError(
                f"checkpoint {str(path)!r}: the file is damaged ({error}). Delete it, or give "
                "another path."
            ) from error
