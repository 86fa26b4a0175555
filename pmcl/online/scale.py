"""Prior scales of neural networks' weights."""

from collections.abc import Callable

import numpy as np

_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(0.0, x),
}


def prior_scale(
    inputs: int, activation: str | Callable[[np.ndarray], np.ndarray] = "linear"
) -> float:
    """Prior standard deviation of a layer's weights that gives its outputs a variance of one.

    Parameters
    ----------
    inputs : int
        Of the layer.
    activation : str or callable
        That the inputs went through: "linear" (standardised data), "relu", "tanh", "sigmoid",
        "softplus", or any function of an array.

    Returns
    -------
    float

    References
    ----------
    Kurle et al. (2020), appendix H, eq. 17, with the variance of the activation of a standard
    normal by Gauss-Hermite quadrature.

    Examples
    --------
    >>> round(prior_scale(100), 3)
    0.1
    """
    if inputs < 1:
        raise ValueError(f"prior_scale: expected at least one input, got {inputs}.")
    if not callable(activation) and activation not in _ACTIVATIONS:
        raise ValueError(
            f"prior_scale: expected an activation of {sorted(_ACTIVATIONS)} or a function, got "
            f"{activation!r}."
        )
    f = activation if callable(activation) else _ACTIVATIONS[activation]
    # an even number of nodes: none is at zero, where relu has its corner
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    weights = weights / weights.sum()
    values = f(nodes)
    variance = weights @ values**2 - (weights @ values) ** 2
    return float(1 / np.sqrt(inputs * variance))
