"""What cannot be compiled, and the way out: one clear error each."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
from pymc.data import MinibatchOp
from pymc.distributions.multivariate import CARRV, ICARRV
from pymc.ode import DifferentialEquation
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, applys_between
from scipy.sparse.csgraph import connected_components

from pmcl.compile.conversion.graphs import ShapedFunction, host_mode
from pmcl.compile.marginal import how_to_sum_out, is_discrete
from pmcl.compile.variables import VariableInfo

_STEPS = """    def until_next(y, p):  # four or so of these reach the next time
        for _ in range(4):
            k1 = f(y, p)
            k2 = f(y + h / 2 * k1, p)
            k3 = f(y + h / 2 * k2, p)
            k4 = f(y + h * k3, p)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y

    states = pytensor.scan(
        until_next, outputs_info=[y0], non_sequences=[p], n_steps=len(times), return_updates=False
    )
"""


class UnsupportedModelError(ValueError):
    """A PyMC model that pmcl cannot compile; the message names the variable and the way out."""


def check_model(model: pm.Model) -> None:
    """Refuse models whose density cannot be derived.

    Raises
    ------
    UnsupportedModelError
        Naming the variable, what is wrong with it and what to do.
    """
    _check_names(model)
    _check_imputed(model)  # first: imputation also changes the free and the observed variables
    _check_observed(model)
    _check_discrete(model)
    for rv in model.basic_RVs:
        _check_operation(rv)
    for rv in model.observed_RVs:
        _check_minibatch(rv, model.rvs_to_values[rv])


def check_host(outputs: Sequence[Variable], reason: str) -> None:
    """Refuse to simulate on the host what PyMC's own samplers draw wrongly, or not at all.

    Raises
    ------
    UnsupportedModelError
        Naming the distribution, and why JAX cannot draw it here.
    """
    for node in applys_between([], outputs):
        if isinstance(node.op, CARRV | ICARRV):
            raise UnsupportedModelError(
                f"A `pm.{node.op.name.upper()}` can only be simulated in JAX (PyMC has no sampler "
                f"of the ICAR density, and its sampler of CAR has another covariance), and JAX "
                f"cannot simulate the rest of this model: {reason or 'it was not asked to'}."
            )


def trace_or_name(
    function: ShapedFunction, like: Sequence[jax.ShapeDtypeStruct], names: Sequence[str]
) -> list[jax.ShapeDtypeStruct]:
    """Trace a function by JAX, or refuse by the name of the first output that JAX cannot trace."""
    cannot = (NotImplementedError, TypeError, jax.errors.JAXTypeError)
    try:
        return list(jax.eval_shape(function, *like))
    except cannot as error:
        culprit = _first_that_fails(lambda one: jax.eval_shape(one, *like), function, names, cannot)
        what = str(error).strip().splitlines()[0].rstrip(".")
        if "incompatible shapes" in what:
            raise UnsupportedModelError(
                f"Variable {culprit!r}: what the model has for it and for what it depends on does "
                f"not go together: {what}. After `pm.set_data` of one variable the others need as "
                "many values: observations in a `pm.Data`, too, or a model with placeholders of "
                "one length."
            ) from error
        raise UnsupportedModelError(
            f"Variable {culprit!r} cannot be compiled to JAX: "
            f"{what}. Write it with another distribution, or as a "
            "`pm.CustomDist` of operations that PyTensor converts to JAX."
        ) from error


def check_terms(found: Sequence[tuple[VariableInfo, jax.ShapeDtypeStruct]]) -> None:
    """Refuse likelihoods that count values more than once: parameters spread them over more axes.

    A single value may stand for data of another shape.

    Raises
    ------
    UnsupportedModelError
    """
    for info, term in found:
        axes = zip(term.shape, info.shape, strict=False)
        if np.prod(info.shape) > 1 and any(own == 1 < n for n, own in axes):
            raise UnsupportedModelError(
                f"Variable {info.name!r}: it has values of shape {info.shape}, and parameters that "
                f"spread these over {term.shape}: each value counts several times. Give the "
                "parameters and the observations the same axes (`[:, None]`, `.ravel()`, `dims`)."
            )


def check_differentiable(
    function: ShapedFunction, like: Sequence[jax.ShapeDtypeStruct], names: Sequence[str], z: int
) -> None:
    """Refuse terms of a density without first and second derivatives, by the first one's name.

    Parameters
    ----------
    function : ShapedFunction
        One output a term; its first `z` inputs are the parameters.
    like : sequence of shapes
        Of the inputs.
    names : sequence of str
        Of the outputs.
    z : int

    Raises
    ------
    UnsupportedModelError
    """
    cannot = (NotImplementedError, TypeError, ValueError, AssertionError)

    def derive(term: ShapedFunction) -> None:
        def total(parameters: tuple, rest: tuple) -> jax.Array:
            return sum((v.sum() for v in term(*parameters, *rest)), jnp.zeros(()))

        def curved(parameters: tuple, rest: tuple) -> tuple:
            return jax.jvp(lambda u: jax.grad(total)(u, rest), (parameters,), (parameters,))

        jax.eval_shape(curved, tuple(like[:z]), tuple(like[z:]))

    try:
        derive(function)
    except cannot as error:
        culprit = _first_that_fails(derive, function, names, cannot)
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UnsupportedModelError(
            f"The log density of {culprit!r} cannot be differentiated twice in JAX: "
            f"{why} Write the operation in another way (a loop of a fixed length in place of one "
            "that ends by a condition, say)."
        ) from error


def _first_that_fails(
    attempt: Callable[[ShapedFunction], object],
    function: ShapedFunction,
    names: Sequence[str],
    cannot: tuple[type[Exception], ...],
) -> str:
    """Name the first output at which an attempt fails; the first of all where none fails alone."""
    for name, output in zip(names, function.outputs, strict=True):
        try:
            attempt(ShapedFunction(function.inputs, [output]))
        except cannot:
            return name
    return names[0]


def invalid_parameters(
    model: pm.Model, error: ValueError | ZeroDivisionError
) -> UnsupportedModelError:
    """Explain that a draw of the prior gave a distribution parameters outside their range."""
    culprit = "the model"
    for rv in model.basic_RVs:
        try:
            pm.draw(rv, 200, random_seed=0, mode=host_mode())
        except (ValueError, ZeroDivisionError):
            culprit = f"variable {rv.name!r}"
            break
    if isinstance(error, ZeroDivisionError):
        return UnsupportedModelError(
            f"Drawing {culprit} from its prior divides by zero: numbers underflow, as those of a "
            "Gamma or InverseGamma of shape 0.001 do. Give it a prior whose draws are finite "
            "numbers (a HalfNormal or an Exponential for a scale, say)."
        )
    return UnsupportedModelError(
        f"A draw of the prior gave {culprit} invalid parameters ({error}), so that it cannot be "
        "simulated. Give each parameter a prior with the support that the distribution needs (a "
        "positive one for a scale, say)."
    )


# Dims of results, and the column that names datasets.
_RESERVED = ("chain", "draw", "dataset")


def _check_names(model: pm.Model) -> None:
    named = [str(name) for name in model.named_vars]
    dims = [str(d) for given in model.named_vars_to_dims.values() for d in given or () if d]
    for kind, names in (("Variable", named), ("Dim", dims)):
        for name in _RESERVED:
            if name in names:
                raise UnsupportedModelError(
                    f"{kind} {name!r}: expected a name of its own, as {list(_RESERVED)} are dims "
                    f"of all results. Rename it in the model ({name + '_number'!r}, say)."
                )


def _check_imputed(model: pm.Model) -> None:
    for rv in model.observed_RVs:
        # PyMC splits "y" into "y_observed" and "y_unobserved", which it infers.
        name = str(rv.name).removesuffix("_observed")
        if name != rv.name and {name, f"{name}_unobserved"} <= set(model.named_vars):
            raise UnsupportedModelError(
                f"Variable {name!r} has missing values in `observed`, which PyMC turns into free "
                "parameters. Build the model with complete placeholder values (for example "
                "`observed=np.zeros(...)`) and pass the real data to pmcl instead: NaN is left out "
                "of the likelihood. Where other variables depend on those values make them "
                "parameters: observe what is there, "
                f"`pm.Normal('{name}', ..., observed=x[there])`, "
                f"give the rest the same prior, `gaps = pm.Normal('{name}_gaps', ..., "
                "shape=int((~there).sum()))`, and use "
                "`pt.set_subtensor(pt.as_tensor(x)[~there], gaps)`."
            )
        value = model.rvs_to_values[rv]
        for source in ancestors([value]):
            missing = _missing(source)
            if missing:
                raise UnsupportedModelError(
                    f"Variable {rv.name!r} has {missing} missing values (NaN) in `observed`. Build "
                    "the model with complete placeholder values and pass the real data to pmcl."
                )


def _missing(source: Variable) -> int:
    if isinstance(source, Constant):
        data = np.asarray(source.data)
    elif isinstance(source, SharedVariable):
        data = np.asarray(source.get_value(borrow=True))
    else:
        return 0
    return int(np.isnan(data).sum()) if np.issubdtype(data.dtype, np.floating) else 0


def _check_observed(model: pm.Model) -> None:
    if not model.observed_RVs and not model.potentials:
        raise UnsupportedModelError(
            "The model has no observed variable and no Potential: nothing says which variables are "
            "data. Give the likelihood `observed=` (placeholder values of the right shape will do)."
        )
    if not model.free_RVs:
        raise UnsupportedModelError("The model has no free variable: there is nothing to infer.")


def _check_discrete(model: pm.Model) -> None:
    for rv in model.free_RVs:
        if is_discrete(rv):
            raise UnsupportedModelError(
                f"Free variable {rv.name!r} is discrete ({rv.type.dtype}); its posterior has no "
                f"density with gradients. Sum it out: {how_to_sum_out(model, rv)}"
            )


def _check_operation(rv: Variable) -> None:
    op, name = rv.owner.op, rv.name
    if isinstance(op, MinibatchRandomVariable):
        raise UnsupportedModelError(
            f"Variable {name!r} uses `total_size` (`pm.Minibatch`), which rescales the likelihood "
            "of a random part of the data. Remove it: pmcl batches over datasets by itself."
        )
    if any(v.owner and isinstance(v.owner.op, DifferentialEquation) for v in ancestors([rv])):
        raise UnsupportedModelError(
            f"Variable {name!r} depends on a `pm.ode.DifferentialEquation`, which JAX cannot run. "
            "Take steps of a fixed length in its place, and as many between two times as the "
            f"equation needs:\n\n{_STEPS}"
        )
    if isinstance(op, ICARRV):
        _check_icar(rv)


def _check_icar(rv: Variable) -> None:
    W, *scales = rv.owner.op.dist_params(rv.owner)
    name = rv.name
    if any(v.owner and hasattr(v.owner.op, "ndim_supp") for v in ancestors(scales)):
        raise UnsupportedModelError(
            f"Variable {name!r} is a `pm.ICAR` whose `sigma` is not a constant: PyMC leaves the "
            "factor of the density that depends on it out, so that it is no distribution. Write "
            f"`sigma * pm.ICAR({name!r}, W=W)`."
        )
    if isinstance(W, Constant) and connected_components(W.data)[0] > 1:
        raise UnsupportedModelError(
            f"Variable {name!r} is a `pm.ICAR` of places that are not all connected: it is "
            "improper and cannot be simulated. Give each connected part a variable of its own."
        )


def _check_minibatch(rv: Variable, value: Variable) -> None:
    if any(v.owner and isinstance(v.owner.op, MinibatchOp) for v in ancestors([rv, value])):
        raise UnsupportedModelError(
            f"Variable {rv.name!r} depends on `pm.Minibatch`, a random part of the data. Give the "
            "model the whole of one dataset: pmcl batches over datasets by itself."
        )
