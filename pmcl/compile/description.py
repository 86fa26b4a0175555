"""What tells a model from others: its names, dims, shapes and coords."""

from pmcl.compile.model import CompiledModel


def describe(compiled: CompiledModel) -> dict:
    """Names, dims, shapes and coords of a model."""

    def infos(variables) -> dict:  # noqa: ANN001
        return {v.name: [list(v.dims), list(v.shape), v.dtype] for v in variables}

    return {
        "free": infos(compiled.free),
        "deterministics": infos(compiled.deterministics),
        "observed": infos(compiled.observed),
        "covariates": infos(compiled.covariates),
        "z": {v.name: [v.variable, v.start, list(v.shape)] for v in compiled.values},
        "coords": {k: [str(x) for x in v] for k, v in compiled.coords.items()},
    }
