"""Discrete parameters: how to write the model without them, said with the model's own names."""

import numpy as np
import pymc as pm
from pymc.distributions.discrete import DiscreteUniformRV
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV

# What a variable can be, and the weights of these values, in the words of a model.
FINITE: dict[type, tuple[str, str]] = {
    BernoulliRV: ("[0, 1]", "pt.stack([1 - p, p], axis=-1)"),
    CategoricalRV: ("range(K)", "p"),
    DiscreteUniformRV: ("range(lower, upper + 1)", "np.full(K, 1 / K)"),
}


def is_discrete(rv: Variable) -> bool:
    """Whether a variable has no density."""
    return rv.type.dtype == "bool" or np.issubdtype(np.dtype(rv.type.dtype), np.integer)


def how_to_sum_out(model: pm.Model, rv: Variable) -> str:
    """Show two ways to write a model without one of its discrete variables.

    pymc-extras sums finite ones out of the model as it stands. By hand, a variable with one value
    for each observation becomes the weights of a mixture; one that several observations share has
    its sum outside their product.
    """
    name = rv.name
    finite = FINITE.get(type(rv.owner.op))
    logs = f"pm.logp(pm.{_written(rv)}.dist(...), {name})"
    values, weights = finite or ("range(K)", f"[pt.exp({logs}) for {name} in range(K)]")
    parts = []
    if finite or type(rv.owner.op).__name__ == "DiscreteMarkovChainRV":
        parts.append(
            "let pymc-extras do it (`pip install 'pmcl[marginal]'`):\n\n"
            f"    model = pymc_extras.marginalize(model, [{name!r}])\n"
        )
    for y in [v for v in model.observed_RVs if rv in ancestors([v])]:
        what = f"pm.{_written(y)}.dist(...)"
        given = f"{what} for {name} in {values}"
        if rv.type.ndim >= y.type.ndim:
            code = (
                f"    pm.Mixture({y.name!r}, w={weights}, "
                f"comp_dists=[{given}], observed=..., dims=...)\n"
            )
        else:
            code = (
                "    def logp(value, rows, *parameters):\n"
                f"        terms = [{logs} + pm.logp({what}, value).sum() for {name} in {values}]\n"
                "        return pt.logsumexp(pt.stack(terms))\n"
                "    def random(rows, *parameters, rng, size): ...  "
                f"# draw {name!r}, then {y.name!r}\n"
                f"    pm.CustomDist({y.name!r}, np.arange(N), *parameters, logp=logp, "
                'random=random, signature="(n),()->(n)", observed=..., dims=...)\n'
            )
        parts.append(
            f"write it into the likelihood, with what {y.name!r} has at each value of {name!r}:"
            f"\n\n{code}"
        )
    bound = "" if finite else "\n(K: beyond which the prior leaves nothing that matters.)"
    return "\nor ".join(parts) + bound


def _written(rv: Variable) -> str:
    """A distribution's name in a model: the one that it is printed by, where PyMC has that."""
    printed = (getattr(rv.owner.op, "_print_name", None) or ("",))[0]
    return printed if hasattr(pm, printed) else type(rv.owner.op).__name__.removesuffix("RV")
