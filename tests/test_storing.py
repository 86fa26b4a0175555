"""Results written to a folder part by part are those that memory would hold."""

import os
import subprocess
import sys

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pmcl
from pmcl.parts import datasets, run
from pmcl.parts.job import run_part

TINY = pmcl.Network(
    pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=8, head_depth=1),
    pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=8),
)


@pytest.fixture(scope="module")
def posterior() -> pmcl.AmortizedPosterior:
    with pm.Model(coords={"obs": range(8)}) as model:
        x = pm.Data("x", np.zeros(8), dims="obs")
        slope = pm.Normal("slope", 0, 1)
        mu = pm.Deterministic("mu", slope * x, dims="obs")
        pm.Normal("y", mu, 1, observed=np.zeros(8), dims="obs")
    return pmcl.fit_amortized(
        model,
        covariates={"x": pm.Normal.dist(0, 1)},
        network=TINY,
        steps=50,
        random_seed=0,
        progressbar=False,
    )


def ragged(lengths: list[int]) -> dict[str, xr.Dataset]:
    """Datasets of these lengths, whose names grow longer."""
    rng = np.random.default_rng(0)
    return {
        "d" * (i + 1): xr.Dataset(
            {"x": ("obs", rng.normal(size=n)), "y": ("obs", rng.normal(size=n))}
        )
        for i, n in enumerate(lengths)
    }


# a part of full length, one that is ragged, one whose datasets are all short, and half a part
LENGTHS = [8, 8, 8, 8, 5, 8, 5, 5, 5, 6]


@pytest.mark.parametrize("refine", [False, pmcl.Refine(steps=2, rounds=0)])
def test_a_stored_sample_is_the_sample(posterior, tmp_path, monkeypatch, refine):
    monkeypatch.setattr(datasets, "TOGETHER", 3)
    options = {
        "refine": refine, "fallback": None, "random_seed": 1,
        "log_likelihood": True, "log_prior": True, "posterior_predictive": True,
    }  # fmt: skip
    data = ragged(LENGTHS)
    whole = posterior.sample(data, 300, **options)
    stored = posterior.sample(data, 300, store=tmp_path / "draws.zarr", **options)
    assert [p.name for p in tmp_path.iterdir()] == ["draws.zarr"]
    assert set(stored.children) == set(whole.children)
    for name, node in whole.children.items():
        ours, theirs = stored[name].to_dataset().load(), node.to_dataset()
        assert set(ours.data_vars) == set(theirs.data_vars)
        assert set(ours.coords) == set(theirs.coords)
        for variable, value in theirs.variables.items():
            if value.dtype.kind == "f":
                # chunks of another size are other compiled functions: rounding differs
                np.testing.assert_allclose(ours[variable], value, rtol=1e-4, atol=1e-4)
            else:
                np.testing.assert_array_equal(ours[variable], value)
    assert stored["posterior"].attrs["engine"] == whole["posterior"].attrs["engine"]
    assert stored["posterior"].attrs["sampling_time"] > 0
    # NaN past the end of the short ones, and nowhere else
    mu = stored["posterior"]["mu"]
    np.testing.assert_array_equal(np.isfinite(mu[0, 0]).sum("obs"), LENGTHS)
    assert pmcl.one(stored, "ddddd")["posterior"]["mu"].sizes["obs"] == 5


def test_parts_of_a_ragged_task_are_masked_like_the_whole(posterior):
    """A part whose datasets are all short is padded still."""
    task = pmcl.as_task(ragged(LENGTHS), posterior.layout)
    parts = list(task.parts(3))
    assert [p.first for p in parts] == [0, 3, 6, 9] and [len(p) for p in parts] == [3, 3, 3, 1]
    assert [p.ragged for p in parts] == [False, True, True, True]
    np.testing.assert_array_equal(parts[2].rows.sum(axis=1), [5, 5, 5])
    alone = posterior.sample({"d": parts[2].labelled().isel(dataset=0, obs=slice(5))}, 50,
                             refine=False, random_seed=0)  # fmt: skip
    first = pmcl.one(posterior.sample(parts[2], 50, refine=False, random_seed=0), 0)
    # the same but for the dataset's position: the posterior does not see the padding
    for name in ("log_likelihood", "log_q"):
        a, b = (t["sample_stats"][name].values.mean() for t in (alone, first))
        assert abs(a - b) < 1.0
    z = posterior.sample(parts[2], 50, refine=False, random_seed=0)
    log_q = posterior.log_prob(z, parts[2]).values
    np.testing.assert_allclose(log_q, z["sample_stats"]["log_q"], rtol=1e-4, atol=1e-4)


def test_what_is_there_already_is_left_alone(posterior, tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(FileExistsError, match="mine is there already"):
        posterior.sample(ragged([8]), 20, store=tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []


def test_two_do_not_write_the_same_results(posterior, tmp_path, monkeypatch):
    data, store = ragged([8] * 4), tmp_path / "draws.zarr"
    options = {"refine": False, "random_seed": 0, "store": store}
    work, refused = run_part, []

    def meanwhile(*args):
        with pytest.raises(FileExistsError, match="another process is writing"):
            posterior.sample(data, 20, **options)
        refused.append(store.exists())
        return work(*args)

    monkeypatch.setattr(run, "run_part", meanwhile)
    tree = posterior.sample(data, 20, **options)
    assert refused == [False] and np.isfinite(tree["posterior"]["slope"]).all()
    assert [p.name for p in tmp_path.iterdir()] == ["draws.zarr"]


MANY = """
import resource, sys
import numpy as np, pymc as pm
import pmcl

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

with pm.Model(coords={"obs": range(8)}) as model:
    pm.Normal("y", pm.Normal("mu", 0, 1, shape=6).sum(), 1, observed=np.zeros(8), dims="obs")
network = pmcl.Network(
    pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=8, head_depth=1),
    pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=8),
)
posterior = pmcl.fit_amortized(model, network=network, steps=20, random_seed=0, progressbar=False)
y = np.random.default_rng(0).normal(size=(10_000, 8))
posterior.sample({"y": y[:10]}, 1000, refine=False)
before = peak()
tree = posterior.sample({"y": y}, 1000, refine=False, store=sys.argv[1])
size = sum(v.nbytes for n in tree.subtree for v in n.to_dataset().variables.values()) / 2**30
print(peak() - before, size)
"""


@pytest.mark.slow
def test_ten_thousand_datasets_need_less_than_a_gibibyte(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", MANY, str(tmp_path / "many.zarr")]
    found = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert found.returncode == 0, found.stderr
    more, size = map(float, found.stdout.split()[-2:])
    assert size > 1.0  # what was written is larger than what was needed to write it
    assert more < 1.0
