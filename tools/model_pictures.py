"""Draw a thumbnail of every published model that has a trained state, for the gallery.

Two parameters of the first three example datasets, as the published network alone has them: the
regions that hold half and nine tenths of the draws.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

import pmcl

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "_static" / "models"
COLORS = ("#0b7a75", "#d1495b", "#edae49")


def two(name: str, draws: int) -> tuple[list[str], list[np.ndarray]]:
    """Names of the first two parameters, and their draws (2, draw) for each of three datasets."""
    definition = pmcl.models.find(name)
    posterior = pmcl.models.load(name)
    data = definition.example()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a picture: nothing rests on it
        tree = posterior.sample(data, draws, refine=False, random_seed=1)
    group = tree["posterior"].to_dataset().isel(dataset=slice(0, 3))
    columns: dict[str, np.ndarray] = {}
    for variable in group.data_vars:
        array = group[variable].transpose("dataset", "chain", "draw", ...)
        flat = array.values.reshape(array.sizes["dataset"], draws, -1)
        for i in range(min(flat.shape[-1], 2)):
            columns[f"{variable}[{i}]" if flat.shape[-1] > 1 else str(variable)] = flat[..., i]
        if len(columns) >= 2:
            break
    names = list(columns)[:2]
    return names, [np.stack([columns[n][d] for n in names]) for d in range(len(columns[names[0]]))]


def picture(name: str, draws: int = 2000) -> None:
    """Write the thumbnail of one model."""
    from scipy.stats import gaussian_kde

    names, datasets = two(name, draws)
    figure, axes = plt.subplots(figsize=(2.6, 1.9))
    for values, color in zip(datasets, COLORS, strict=False):
        density = gaussian_kde(values)
        grid = [np.linspace(np.quantile(v, 0.002), np.quantile(v, 0.998), 50) for v in values]
        mesh = np.meshgrid(*grid)
        height = density(np.stack([m.ravel() for m in mesh])).reshape(mesh[0].shape)
        levels = np.quantile(density(values[:, :500]), [0.1, 0.5])
        axes.contour(*grid, height, levels=levels, colors=color, linewidths=1.3)
    axes.set(xlabel=names[0], ylabel=names[1])
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Draw the models named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="published models; all if none")
    FOLDER.mkdir(parents=True, exist_ok=True)
    plt.rcParams.update(
        {
            "svg.hashsalt": "pmcl",
            "font.size": 8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.constrained_layout.use": True,
        }
    )
    for name in parser.parse_args().names or pmcl.models.names():
        picture(name)
        print(name, flush=True)


if __name__ == "__main__":
    main()
