"""A network's flow under another density of the same variables: another prior, for one."""

from functools import partial

import pymc as pm

from pmcl.compile import CompiledModel, VariableInfo, compile_model
from pmcl.compile.labelled import model_or_context
from pmcl.compile.resizing import resized
from pmcl.data.covariates import covariates_among
from pmcl.data.task import TaskLike


def compiled_other(
    own: CompiledModel,
    model: pm.Model | CompiledModel | None,
    data: TaskLike,
    *,
    dim: str | None = None,
) -> CompiledModel:
    """Compile a model that is to take the place of the one that a network was trained for.

    It may have covariates beside those of the network, where they come with the data: the network
    does not see them, the density does. Along `dim` it is given the length that the network's has.

    Raises
    ------
    ValueError
        Naming the variables that differ.
    """
    if isinstance(model, CompiledModel):
        found = model
    else:
        plain = model_or_context(model)
        known = {i.name for i in own.covariates} | {*covariates_among(plain, data)}
        names = [v.name for v in plain.data_vars if v.name in known]
        found = compile_model(plain, covariates=names)
    size = len(own.coords.get(dim or "", ()))
    if dim is not None and len(found.coords.get(dim, ())) != size:
        found = found.keep_few("length", (dim, size), partial(_resized, found, dim, size), most=4)
    check_same(own, found)
    return found


def _resized(compiled: CompiledModel, dim: str, size: int) -> CompiledModel:
    covariates = [i.name for i in compiled.covariates]
    return compile_model(resized(compiled.model, dim, size), covariates=covariates)


def check_same(own: CompiledModel, other: CompiledModel) -> None:
    """Refuse a model whose parameters or data are others than a network's.

    Raises
    ------
    ValueError
        Naming the variables.
    """
    pairs = [
        ("free", own.free, other.free),
        ("observed", own.observed, other.observed),
        ("covariate", own.covariates, other.covariates),
    ]
    for kind, ours, theirs in pairs:
        a, b = ({i.name: i for i in infos} for infos in (ours, theirs))
        wrong = [f"{n!r} is missing" for n in a if n not in b]
        if kind != "covariate":
            wrong += [f"{n!r} is new" for n in b if n not in a]
        wrong += [
            f"{n!r} has dims {b[n].dims} and shape {b[n].shape}, expected {a[n].dims} and "
            f"{a[n].shape}"
            for n in a
            if n in b and not _alike(a[n], b[n], own)
        ]
        if wrong:
            raise ValueError(
                f"model: expected the {kind} variables of the posterior's own model, "
                f"{[*a]}: {'; '.join(wrong)}. Draws of another model's variables need a posterior "
                "of their own (`fit_amortized`), or `pmcl.refine`."
            )
    sizes = [{v.variable: v.shape for v in c.values} for c in (own, other)]
    wrong = [n for n, shape in sizes[0].items() if sizes[1][n] != shape]
    order = [[v.variable for v in c.values] for c in (own, other)]
    if wrong or order[0] != order[1]:
        raise ValueError(
            f"model: expected unconstrained values of the same shape and in the same order as the "
            f"posterior's own model has them, {order[0]}; {wrong or order[1]} differ. Write the "
            "model with the same variables in the same order, each with the same kind of support."
        )


def _alike(a: VariableInfo, b: VariableInfo, own: CompiledModel) -> bool:
    def sizes(info: VariableInfo) -> list[tuple[str, int]]:
        pairs = zip(info.dims, info.shape, strict=True)
        return [(d, -1 if d in own.data_dims else n) for d, n in pairs]

    return sizes(a) == sizes(b)
