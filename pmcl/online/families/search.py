"""How normals with covariances are searched for: the options."""

import equinox as eqx


class GaussNewton(eqx.Module):
    """How normals with covariances are searched for: natural-gradient Gauss-Newton steps.

    Every step linearises what the distributions of the rows are told by z, takes expectations over
    the predictors in closed form, by quadrature or by draws, and solves for the mean. A network
    keeps the slopes that its first rows gave it.

    Attributes
    ----------
    steps : int
        At most.
    first_steps : int, optional
        Of the first search of all, and where rows are the first of a network's entries to depend on
        some, which have farthest to go; four times `steps` by default.
    rank : int
        Of what a low-rank family keeps beside its diagonal.
    tolerance : float
        A step shorter than this, in standard deviations, ends a search.
    """

    steps: int = 50
    first_steps: int | None = None
    rank: int = 50
    tolerance: float = 1e-4

    def __check_init__(self) -> None:
        for name in ("steps", "first_steps", "rank"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"GaussNewton: expected {name} of at least 1, got {value}.")
        if not self.tolerance > 0:
            raise ValueError(f"GaussNewton: expected a tolerance above 0, got {self.tolerance}.")

    def length(self, n: int, *, first: bool = False) -> int:
        """Number of steps at most, for any number of rows."""
        return (self.first_steps or 4 * self.steps) if first else self.steps
