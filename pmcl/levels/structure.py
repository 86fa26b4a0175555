"""What a multilevel model consists of: global parameters, groups, and what belongs to each."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jax import Array

KEY = "levels of z"  # under which a dataset has what is `Given` of its levels


class Known(NamedTuple):
    """Parameters of one dataset that are known (or of several, with a leading dataset).

    Attributes
    ----------
    z : Array of shape (dim,)
        NaN where an entry is not known.
    log_jacobian : Array of shape ()
        Of the transforms of what is known, whose density is that on the scale of the model.
    """

    z: Array
    log_jacobian: Array


class Split(NamedTuple):
    """Where the parts of one dataset are (or of several, with a leading dataset).

    The parameters of all groups are an array l of shape (width, group), padded where groups have
    different numbers of them.

    Attributes
    ----------
    place : Array of int of shape (dim,)
        Position of every entry of z in (g, l), l flat.
    owner : Array of int of shape (element,)
        Group of every term of the log density (see `Density.elements`); the number of groups for
        those of the global parameters alone, one more for those of padding.
    real : Array of bool of shape (width, group)
        False for padding, and for what is known.
    known : Known, optional
        In the place of a known entry (g, l) has a standard normal that belongs to nothing.
    """

    place: Array
    owner: Array
    real: Array
    known: Known | None = None

    @property
    def width(self) -> int:
        """Most parameters of a group."""
        return self.real.shape[-2]

    @property
    def groups(self) -> int:
        """Most groups of a dataset."""
        return self.real.shape[-1]

    @property
    def block(self) -> bool:
        """Whether all that is not global is one group."""
        return self.groups == 1


class Anchor(NamedTuple):
    """Where groups have their modes at some global parameters, and how these move with them.

    A search begins there. All fields are those of one dataset, or have a leading one.

    Attributes
    ----------
    g : Array of shape (global,)
    l : Array of shape (width, group)
    slope : Array of shape (width, group, global)
    """

    g: Array
    l: Array  # noqa: E741
    slope: Array


class Given(NamedTuple):
    """What densities of a dataset's global parameters need beside the data."""

    split: Split
    anchor: Anchor | None = None


@dataclass(frozen=True, eq=False)
class Levels:
    """The levels of a model, as found for the datasets of one task.

    Attributes
    ----------
    shared : array of int of shape (global,)
        Positions of the global parameters in z.
    split : Split
        With a leading dataset.
    exact : bool
        Whether the log density of every group is quadratic in the group's parameters.
    text : str
        What was found, in a line.
    labels : tuple of tuple of str, optional
        Names of each dataset's groups, where they have their own.
    concave : bool
        Whether the log density of every group is concave in the group's parameters.
    """

    shared: np.ndarray
    split: Split
    exact: bool
    text: str
    labels: tuple[tuple[str, ...], ...] | None = None
    concave: bool = True

    @property
    def width(self) -> int:
        """Most parameters of a group."""
        return self.split.width

    @property
    def groups(self) -> int:
        """Most groups of a dataset."""
        return self.split.groups

    def named(self, labels: tuple[tuple[str, ...], ...]) -> "Levels":
        """The same for datasets of which each has these groups, any others being padding."""
        return replace(self.cut(np.array([len(names) for names in labels])), labels=labels)

    def cut(self, numbers: np.ndarray) -> "Levels":
        """The same for datasets of which each has so many groups, the others being padding.

        Terms of these belong to nothing, and are left out of all sums.
        """
        split, most = self.split, np.asarray(numbers)[:, None]
        owner = np.asarray(split.owner)
        left_out = (owner >= most) & (owner < self.groups)
        real = np.asarray(split.real) & (np.arange(self.groups) < most[:, None])
        owner = np.where(left_out, self.groups + 1, owner).astype(owner.dtype)
        return replace(self, split=split._replace(owner=owner, real=real))  # type: ignore[arg-type]

    def knowing(self, known: Known) -> "Levels":
        """The same where some parameters of each dataset are known."""
        split, shared = self.split, len(self.shared)
        real = np.asarray(split.real)
        open_ = np.ones((len(real), shared + real[0].size), bool)
        np.put_along_axis(open_, np.asarray(split.place), np.isnan(known.z), axis=1)
        real = real & open_[:, shared:].reshape(real.shape)
        return replace(self, split=split._replace(real=real, known=known))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class NoLevels:
    """A model, or data, without levels that could be treated as such.

    Attributes
    ----------
    text : str
        Why.
    """

    text: str

    def __str__(self) -> str:
        return self.text
