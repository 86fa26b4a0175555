"""The picture at the top of the README: new data, and their posterior in three ways.

The published network of the linear regression (its density is searched, it adds the shape),
NUTS of the same model, and a network of the usual kind, which learns where posteriors are from
simulations alone. Nothing is adapted, refined or corrected.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

import pmcl

HERE = Path(__file__).parent
OURS, NUTS, USUAL = "#0b7a75", "black", "#d1495b"
DRAWS = 2000


def contours(axes, x, y, color, label, style="-"):  # noqa: ANN001, ANN201
    """Draw the regions that hold half and nine tenths of the draws."""
    from scipy.stats import gaussian_kde

    density = gaussian_kde([x, y])
    grid = [np.linspace(v.min() - v.std(), v.max() + v.std(), 80) for v in (x, y)]
    mesh = np.meshgrid(*grid)
    height = density([m.ravel() for m in mesh]).reshape(mesh[0].shape)
    levels = np.quantile(density([x, y]), [0.1, 0.5])
    axes.contour(*grid, height, levels=levels, colors=color, linestyles=style, linewidths=1.6)
    axes.plot([], [], color=color, linestyle=style, label=label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "_static")
    parser.add_argument("--steps", type=int, default=3000, help="of the usual network")
    given = parser.parse_args()

    definition = pmcl.models.find("linear_regression")
    model, data = definition.model(), definition.example().isel(dataset=[0])
    network = pmcl.models.load("linear_regression")
    usual = definition.fit(network=pmcl.Network(whiten=False), steps=given.steps, random_seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the usual network is off is what the picture shows
        begin = time.perf_counter()
        trees = {
            "network of pmcl": network.sample(data, DRAWS, refine=False, random_seed=1),
            "network alone, as usual": usual.sample(data, DRAWS, refine=False, random_seed=1),
        }
        print(f"drawn in {time.perf_counter() - begin:.1f} s")
    reference = pmcl.sample_reference(model, data, draws=DRAWS // 4, random_seed=1)
    for name, tree in trees.items():
        found = pmcl.compare(tree, reference)
        mmd2, bias = float(found["mmd2"][0]), float(found["bias_mean"][0])
        print(f"{name}: MMD2 {mmd2:.4f}, bias {bias:.2f} sd")

    plt.rcParams.update({"font.size": 10, "svg.hashsalt": "pmcl", "axes.spines.top": False,
                         "axes.spines.right": False})  # fmt: skip
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    one = data.isel(dataset=0)
    left.scatter(one["X"][:, 0], one["y"], s=14, color="0.35", linewidths=0)
    left.set(xlabel="body mass index", ylabel="progression of diabetes",
             title="New data: 100 patients, no labels")  # fmt: skip

    def pair(tree):  # noqa: ANN001, ANN202
        posterior = pmcl.one(tree, str(data["dataset"].values[0]))["posterior"]
        return (posterior["beta"].values[..., 0].ravel(), posterior["sigma"].values.ravel())

    contours(right, *pair(trees["network alone, as usual"]), USUAL, "network alone, as usual")
    contours(right, *pair(reference), NUTS, "NUTS")
    contours(right, *pair(trees["network of pmcl"]), OURS, "network of pmcl", "--")
    right.set(xlabel="effect of body mass index", ylabel="residual sd",
              title="Their posterior, 50 and 90 %")  # fmt: skip
    right.set_ylim(bottom=0)
    right.legend(frameon=False, loc="center right")
    given.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(given.out / "picture.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
