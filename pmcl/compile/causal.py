"""Log densities of time series by step: what PyMC sums over time, before it is summed.

A series that is padded at its end keeps the terms of its own steps: no step depends on a later one.
"""

from collections.abc import Iterable, Sequence

import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.continuous import Normal
from pymc.distributions.timeseries import GARCH11RV, AutoRegressiveRV, EulerMaruyamaRV, RandomWalkRV
from pymc.logprob.basic import logp
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op

from pmcl.compile.variables import VariableInfo

_SERIES = (RandomWalkRV, AutoRegressiveRV, GARCH11RV, EulerMaruyamaRV)


def dims_of_time(model: pm.Model, infos: Iterable[VariableInfo]) -> frozenset[str]:
    """Dims along which a variable is a series, so that the order of its values counts."""
    nodes = [(i, getattr(model.named_vars.get(i.name), "owner", None)) for i in infos if i.dims]
    return frozenset(
        i.dims[-node.op.ndim_supp]
        for i, node in nodes
        if node is not None
        and (isinstance(node.op, _SERIES) or type(node.op).__name__ == "DiscreteMarkovChainRV")
    )


def steps(op: Op, inputs: Sequence[Variable], value: Variable) -> Variable | None:
    """Log density of every step of a series given those before it.

    Parameters
    ----------
    op : of a random variable
    inputs : its inputs, in which other variables of the model are values
    value : its value, of shape (..., time) or (..., time, entry)

    Returns
    -------
    Variable of shape (..., time), or None
        None where the distribution is none of PyMC's time series.
    """
    if isinstance(op, RandomWalkRV):
        inner = op.fgraph.bind(list(inputs))[op.default_output]
        return logp(inner, value)
    if isinstance(op, AutoRegressiveRV):
        return _autoregressive(op, value, *inputs[:3])
    if isinstance(op, GARCH11RV):
        return _garch(value, *inputs[:4])
    if isinstance(op, EulerMaruyamaRV):
        return _euler_maruyama(op, value, inputs[0], *inputs[2:-1])
    if type(op).__name__ == "DiscreteMarkovChainRV":  # of pymc-extras, which need not be there
        return _markov_chain(op, value, inputs[0], inputs[2])
    return None


def _markov_chain(op: Op, value: Variable, P: Variable, init: Variable) -> Variable | None:
    if op.n_lags != 1 or P.ndim != 2:  # type: ignore[attr-defined]
        return None
    first = logp(init, value[..., :1])
    later = pt.log(P[value[..., :-1], value[..., 1:]])
    return pt.concatenate([first, later], axis=-1)


def _autoregressive(
    op: AutoRegressiveRV, value: Variable, rho: Variable, sigma: Variable, init: Variable
) -> Variable | None:
    if init.owner.op.ndim_supp > 0 and op.ar_order > 1:
        return None  # the first values have one density together
    order, constant = op.ar_order, int(op.constant_term)
    mean = rho[..., 0, None] if constant else pt.zeros(1)
    for i in range(order):
        mean = mean + rho[..., i + constant, None] * value[..., order - (i + 1) : -(i + 1)]
    later = logp(Normal.dist(mean, sigma[..., None]), value[..., order:])
    first = logp(init, value[..., :order])
    if init.owner.op.ndim_supp > 0:
        first = first[..., None]
    return pt.concatenate([first, later], axis=-1)


def _garch(
    value: Variable, omega: Variable, alpha: Variable, beta: Variable, initial: Variable
) -> Variable:
    by_time = pt.moveaxis(value, -1, 0)
    start = initial * pt.ones_like(by_time[0])
    later = pytensor.scan(
        fn=lambda x, vol, w, a, b: pt.sqrt(w + a * x**2 + b * vol**2),
        sequences=[by_time[:-1]],
        outputs_info=[start],
        non_sequences=[omega, alpha, beta],
        strict=True,
        return_updates=False,
    )
    sd = pt.concatenate([start[None], later])
    return pt.moveaxis(logp(Normal.dist(0, sd), by_time), 0, -1)


def _euler_maruyama(
    op: EulerMaruyamaRV, value: Variable, init: Variable, *parameters: Variable
) -> Variable:
    before, now = value[..., :-1], value[..., 1:]
    drift, diffusion = op.sde_fn(before, *(p[..., None] for p in parameters))
    later = logp(Normal.dist(before + op.dt * drift, pt.sqrt(op.dt) * diffusion), now)
    return pt.concatenate([logp(init, value[..., 0])[..., None], later], axis=-1)
