"""Commands that make draws and compare them: sample, reference, compare."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from pmcl.cli.common import Json, ModelName, Quiet, answer, apart, label_columns, loaded
from pmcl.cli.settings import SettingsFile


def sample(
    state: Path,
    data: Path,
    /,
    *,
    model: ModelName,
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    draws: int = 1000,
    refine: Literal["auto", "always", "never"] = "auto",
    dataset: str = "dataset",
    seed: int | None = None,
    json: Json = False,
    quiet: Quiet = False,
    settings: SettingsFile = None,
) -> None:
    """Draw from the posterior of every dataset of a file.

    Parameters
    ----------
    state
        State file.
    data
        Data file: CSV or Parquet with a column that names the dataset, netCDF or Zarr.
    model
        The model of the state: name of a published model, or file.py:function.
    out
        Where the draws go: netCDF where it ends in .nc, else a Zarr folder, written in parts.
    draws
        Draws for each dataset.
    refine
        Correct the network's posterior with the density: where it is poor, always, or never.
    dataset
        Column or dim that tells datasets apart.
    seed
        Random seed.
    json
        Diagnostics of every dataset as JSON.
    quiet
        No progress.
    settings
        YAML, JSON or TOML file of these options by name; those of the command line come first.
    """
    from pmcl.cli.files import check_new, read_data, write_results

    check_new(out)
    how: dict[str, Any] = {"auto": "auto", "always": True, "never": False}
    with apart():
        netcdf = out.name.endswith(".nc")
        posterior = loaded(state, model)
        labels = label_columns(posterior.compiled.model, getattr(posterior, "groups", None))
        tree = posterior.sample(
            read_data(data, dataset=dataset, labels=labels),  # type: ignore[arg-type]
            draws,
            refine=how[refine],
            random_seed=seed,
            store=None if netcdf else out,
            progressbar=not quiet,
        )
        if netcdf:
            write_results(out, tree)
    stats = tree["dataset_stats"].to_dataset()
    rows = {
        str(name): {
            "engine": str(stats["engine"].values[i]),
            "khat": float(stats["khat"].values[i]),
            "efficiency": float(stats["efficiency"].values[i]),
            "warning": str(stats["warning"].values[i]),
        }
        for i, name in enumerate(stats["dataset"].values)
    }
    warned = [name for name, row in rows.items() if row["warning"]]
    told = f"{out}: {draws} draws for each of {len(rows)} datasets"
    if warned:
        told += f"; not to be trusted (k-hat): {', '.join(warned[:10])}"
        told += ", ..." if len(warned) > 10 else ""
    answer({"results": str(out), "datasets": rows}, json, told)


def reference(
    data: Path,
    /,
    *,
    model: ModelName,
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    draws: int = 1000,
    dataset: str = "dataset",
    seed: int | None = None,
    quiet: Quiet = False,
) -> None:
    """Sample the posterior of every dataset of a file by NUTS, to compare with.

    Parameters
    ----------
    data
        Data file: CSV or Parquet with a column that names the dataset, netCDF or Zarr.
    model
        Name of a published model, or file.py:function.
    out
        Where the draws go: netCDF where it ends in .nc, else a Zarr folder.
    draws
        Draws of each of four chains.
    dataset
        Column or dim that tells datasets apart.
    seed
        Random seed.
    quiet
        No progress.
    """
    from pmcl.cli.files import check_new, read_data, write_results
    from pmcl.models.definition import named
    from pmcl.reference import sample_reference

    check_new(out)
    with apart():
        built = named(model).model()
        tree = sample_reference(
            built,
            read_data(data, dataset=dataset, labels=label_columns(built)),  # type: ignore[arg-type]
            draws=draws,
            random_seed=seed,
            progressbar=not quiet,
        )
        write_results(out, tree)
    print(out)


def compare(
    results: Path, reference: Path, /, *, draws: int = 1000, seed: int = 0, json: Json = False
) -> int:
    """Compare draws with reference draws of the same datasets.

    Ends with status 1 where they do not agree.

    Parameters
    ----------
    results
        Draws that `pmcl sample` wrote.
    reference
        Draws that `pmcl reference` wrote.
    draws
        Draws of each that are compared.
    seed
        Random seed.
    json
        As JSON.
    """
    from pmcl.cli.files import read_results
    from pmcl.diagnostics import compare as compare_results

    with apart():
        found = compare_results(
            read_results(results), read_results(reference), draws=draws, random_seed=seed
        )
    columns = ["mmd2", "null_mmd2", "bias_mean", "bias_sd"]
    rows = {
        str(name): {c: float(found[c].values[i]) for c in columns}
        for i, name in enumerate(found["dataset"].values)
    }
    agrees = bool(found.attrs["agrees"])
    width = max(map(len, rows)) + 2
    lines = [" " * width + "".join(f"{c:>12}" for c in columns)]
    lines += [
        f"{name:<{width}}" + "".join(f"{v:>12.4g}" for v in row.values())
        for name, row in rows.items()
    ]
    lines.append("in agreement with the reference" if agrees else "they do not agree")
    answer({"agrees": agrees, "datasets": rows}, json, "\n".join(lines))
    return int(not agrees)
