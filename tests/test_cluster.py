"""Datasets part by part: in this process, on the workers of a Dask cluster, cut off and gone on."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pmcl
from pmcl.compile import compile_model
from pmcl.parts import datasets as in_parts
from pmcl.parts import run
from pmcl.parts.datasets import TOGETHER, Parts
from pmcl.parts.folder import folder_for
from pmcl.parts.job import about_model, bytes_of, run_part
from pmcl.runtime.extras import MissingExtraError

distributed = pytest.importorskip("distributed", reason='needs the extra "cluster"')

NETWORK = pmcl.Network(
    pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=8, head_depth=1),
    pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=8),
)


def model() -> pm.Model:
    with pm.Model(coords={"obs": range(6)}) as built:
        x = pm.Data("x", np.zeros(6), dims="obs")
        slope = pm.Normal("slope", 0, 1)
        pm.Normal("y", slope * x, 1, observed=np.zeros(6), dims="obs")
    return built


def fitted() -> pmcl.AmortizedPosterior:
    return pmcl.fit_amortized(
        model(), covariates={"x": pm.Normal.dist(0, 1)}, network=NETWORK, steps=40,
        random_seed=0, progressbar=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def posterior() -> pmcl.AmortizedPosterior:
    return fitted()


def datasets(n: int) -> xr.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 6))
    y = rng.normal(size=(n, 1)) * x + rng.normal(size=(n, 6))
    names = [f"star {i}" for i in range(n)]
    return xr.Dataset(
        {"x": (("dataset", "obs"), x), "y": (("dataset", "obs"), y)}, coords={"dataset": names}
    )


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(in_parts, "TOGETHER", 4)
    return 4


@pytest.fixture(scope="module")
def client() -> Iterator["distributed.Client"]:
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0
        ) as local,
        distributed.Client(local) as found,
    ):
        yield found


def same(a: xr.DataTree, b: xr.DataTree) -> None:
    assert set(a.children) == set(b.children)
    for name, node in b.children.items():
        ours, theirs = a[name].to_dataset().load(), node.to_dataset()
        assert set(ours.variables) == set(theirs.variables)
        for variable, value in theirs.variables.items():
            if value.dtype.kind == "f" and variable != "seconds":
                # chunks of another size are other compiled functions: rounding differs
                np.testing.assert_allclose(ours[variable], value, rtol=1e-4, atol=1e-4)
            elif variable != "seconds":
                np.testing.assert_array_equal(ours[variable], value)


def test_a_chunked_store_is_read_part_by_part(posterior, tmp_path, together):
    data = datasets(10)
    data.chunk(dataset=2).to_zarr(tmp_path / "data.zarr")
    lazy = xr.open_zarr(tmp_path / "data.zarr")
    options = {"refine": False, "random_seed": 1, "posterior_predictive": True}
    found = posterior.sample(lazy, 50, store=tmp_path / "draws.zarr", **options)
    same(found, posterior.sample(data, 50, **options))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.zarr", "draws.zarr"]


def test_a_cluster_gives_what_this_process_gives(posterior, client, tmp_path, together):
    data = datasets(11)
    lazy = data.chunk(dataset=3)
    options = {"refine": pmcl.Refine(steps=2, rounds=0), "fallback": None, "random_seed": 1}
    found = posterior.sample(lazy, 300, store=tmp_path / "a.zarr", client=client, **options)
    same(found, posterior.sample(data, 300, **options))
    assert client.run(plugins) == {address: [] for address in client.run(plugins)}
    # data in memory
    found = posterior.sample(data, 300, store=tmp_path / "b.zarr", client=client, **options)
    same(found, posterior.sample(data, 300, **options))


def plugins(dask_worker: "distributed.Worker") -> list[str]:
    return [name for name in dask_worker.plugins if name.startswith("pmcl")]


@pytest.mark.slow
def test_references_and_refinement_without_a_network(client, tmp_path, together):
    data = datasets(6)
    nuts = {"draws": 50, "tune": 50, "chains": 2, "random_seed": 3, "progressbar": False}
    nuts |= {"posterior_predictive": True, "log_likelihood": True}
    found = pmcl.sample_reference(model(), data, store=tmp_path / "a.zarr", client=client, **nuts)
    same(found, pmcl.sample_reference(model(), data, **nuts))
    aligned = {"refine": pmcl.Refine(steps=0, rounds=0), "draws": 300, "random_seed": 3}
    aligned |= {"fallback": None}
    aligned |= {"posterior_predictive": True, "log_prior": True}
    aligned |= {"store": tmp_path / "b.zarr", "client": client}
    found = pmcl.refine(model(), data, progressbar=False, **aligned)
    aligned = {k: v for k, v in aligned.items() if k not in ("store", "client")}
    same(found, pmcl.refine(model(), data, progressbar=False, **aligned))


@pytest.mark.slow
def test_questions_to_many_datasets_on_a_cluster(client, tmp_path, together):
    """Discrete variables given back, models compared, and sensitivity, as in this process."""
    quiet = {"random_seed": 1, "progressbar": False}
    rng = np.random.default_rng(0)
    with pm.Model(coords={"obs": range(6)}) as mixture:
        mu = pm.Normal("mu", [-2, 2], 1, shape=2)
        k = pm.Bernoulli("k", 0.4, dims="obs")
        pm.Normal("y", mu[k], 1, observed=np.zeros(6), dims="obs")
    draws = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(
                {"mu": (("chain", "draw", "dataset", "mu_dim_0"), rng.normal(size=(1, 50, 9, 2)))},
                coords={"dataset": [str(i) for i in range(9)]},
            ),
            "observed_data": xr.Dataset({"y": (("dataset", "obs"), rng.normal(size=(9, 6)))}),
        }
    )
    stored = pmcl.recover_discrete(draws, mixture, store=tmp_path / "k.zarr", client=client)
    here = pmcl.recover_discrete(draws, mixture)
    np.testing.assert_array_equal(stored["posterior"]["k"], here["posterior"]["k"])
    np.testing.assert_allclose(stored["probability"]["k"], here["probability"]["k"])

    def normal(sd: float) -> pm.Model:
        with pm.Model(coords={"obs": range(6)}) as built:
            mu = pm.Normal("mu", 0, pm.Data("prior_sd", sd))
            pm.Normal("y", mu, 1, observed=np.zeros(6), dims="obs")
        return built

    models = {"narrow": normal(0.1), "wide": normal(3.0)}
    there = pmcl.model_recovery(models, 10, draws=200, client=client, **quiet)
    here = pmcl.model_recovery(models, 10, draws=200, **quiet)
    np.testing.assert_allclose(there["probability"], here["probability"], rtol=1e-4)
    given = (normal(1.0), {"y": rng.normal(size=(5, 6))}, {"prior_sd": [0.5, 2.0]})
    there = pmcl.sensitivity(*given, draws=200, client=client)
    here = pmcl.sensitivity(*given, draws=200)
    np.testing.assert_allclose(there["mean"]["mu"], here["mean"]["mu"], rtol=1e-4)


@pytest.mark.slow
def test_nuts_is_compiled_once_for_all_parts(tmp_path, together, monkeypatch):
    import nutpie

    compiled: list[int] = []
    compile_model = nutpie.compile_pymc_model
    monkeypatch.setattr(
        nutpie, "compile_pymc_model", lambda *a, **k: compiled.append(1) or compile_model(*a, **k)
    )
    options = {"draws": 50, "tune": 50, "chains": 2, "random_seed": 3, "progressbar": False}
    found = pmcl.sample_reference(model(), datasets(9), store=tmp_path / "a.zarr", **options)
    assert len(compiled) == 1
    same(found, pmcl.sample_reference(model(), datasets(9), **options))


def test_calibration_on_a_cluster(posterior, client, together):
    options = {"simulations": 30, "draws": 50, "random_seed": 0, "progressbar": False}
    same(pmcl.calibrate(posterior, client=client, **options), pmcl.calibrate(posterior, **options))


@pytest.mark.slow
def test_calibration_around_data_is_one_job_for_a_cluster(client, together, monkeypatch):
    with pm.Model(coords={"obs": range(6)}) as exchangeable:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=np.zeros(6), dims="obs")
    posterior = pmcl.fit_amortized(
        exchangeable, network=NETWORK, exchangeable="obs", steps=40, random_seed=0,
        progressbar=False,
    )  # fmt: skip
    jobs: list[int] = []
    register = distributed.Client.register_plugin
    monkeypatch.setattr(
        distributed.Client, "register_plugin", lambda *a, **k: jobs.append(1) or register(*a, **k)
    )
    data = {"y": np.random.default_rng(0).normal(size=(2, 6))}
    options = {"simulations": 30, "draws": 50, "random_seed": 0, "progressbar": False}
    options |= {"refine": False}
    found = pmcl.calibrate(posterior, data, client=client, **options)
    assert len(jobs) == 1
    same(found, pmcl.calibrate(posterior, data, **options))


def test_a_worker_that_dies_costs_its_part(posterior, client, tmp_path, together):
    data = datasets(80)
    path = tmp_path / "draws.zarr"
    hidden = tmp_path / ".draws.zarr.part"
    killed: list[int] = []
    written: dict[Path, int] = {}

    def kill() -> None:
        until = time.monotonic() + 300
        while len(list(hidden.glob("[0-9]*.json"))) < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
        noted = {p.stem for p in hidden.glob("[0-9]*.json")}
        for chunk in hidden.rglob("unconstrained_posterior/slope/c/*/*/*"):
            if chunk.name in noted:
                begin = chunk.parts.index("unconstrained_posterior")
                written[Path(*chunk.parts[begin:])] = chunk.stat().st_mtime_ns
        pids = client.run(os.getpid)
        killed.append(next(iter(pids.values())))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    found = posterior.sample(data, 20, refine=False, random_seed=1, store=path, client=client)
    thread.join()
    assert killed and 2 <= len(written) < 20
    # what was written before is what is there now
    assert {p: (path / p).stat().st_mtime_ns for p in written} == written
    same(found, posterior.sample(data, 20, refine=False, random_seed=1))


KILLED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import test_cluster as t
from pmcl.parts import datasets, run
datasets.TOGETHER = 4
real = run.run_part

def slow(*args):
    time.sleep(0.5)
    return real(*args)

run.run_part = slow
t.fitted().sample(t.datasets(40), 20, refine=False, random_seed=1, store=Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_a_driver_that_dies_goes_on_where_it_was(posterior, tmp_path, together, monkeypatch):
    path, hidden = tmp_path / "draws.zarr", tmp_path / ".draws.zarr.part"
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", KILLED, str(Path(__file__).parent), str(path)],
    )
    while len(list(hidden.glob("[0-9]*.json"))) < 3:
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not path.exists()
    there = {p.name for p in hidden.glob("[0-9]*.json")}
    assert 3 <= len(there) < 10
    done: list[int] = []
    real = run_part

    def counted(job, part):
        done.append(part.number)
        return real(job, part)

    monkeypatch.setattr(run, "run_part", counted)
    found = posterior.sample(datasets(40), 20, refine=False, random_seed=1, store=path)
    assert {f"{n}.json" for n in done} == {f"{n}.json" for n in range(10)} - there
    same(found, posterior.sample(datasets(40), 20, refine=False, random_seed=1))
    assert [p.name for p in tmp_path.iterdir()] == ["draws.zarr"]


def test_what_another_job_left_is_not_gone_on_with(tmp_path):
    first = folder_for(tmp_path / "a", {"seed": 1}, 10, 4)
    assert first.parts == 3 and first.left() == [0, 1, 2] and first.begin(2) == 8
    data = xr.Dataset({"v": (("dataset",), np.arange(4.0))}, coords={"dataset": list("abcd")})
    data.attrs = {"sampling_time": 1.0, "engine": "amortized"}
    first.write(0, xr.DataTree.from_dict({"posterior": data}))
    assert folder_for(tmp_path / "a", {"seed": 1}, 10, 4).left() == [1, 2]
    with pytest.raises(FileExistsError, match=r"differs from this one in \['seed'\]"):
        folder_for(tmp_path / "a", {"seed": 2}, 10, 4)
    # what finishing could not remove counts for nothing
    first.store.rename(tmp_path / "elsewhere")
    assert folder_for(tmp_path / "a", {"seed": 1}, 10, 4).left() == [0, 1, 2]
    # whole numbers have no NaN
    first.write(0, xr.DataTree.from_dict({"posterior": data.astype(int).assign_attrs(data.attrs)}))
    with pytest.raises(TypeError, match="expected values of type int64 of 'v'"):
        first.write(1, xr.DataTree.from_dict({"posterior": data}))


def test_counts_of_a_ragged_task(tmp_path, together):
    """The first part has datasets of full length only, and whole numbers."""
    with pm.Model(coords={"obs": range(3)}) as counts:
        pm.Poisson("n", pm.Gamma("rate", 2, 1), observed=np.ones(3, int), dims="obs")
    posterior = pmcl.fit_amortized(
        counts, network=NETWORK, steps=20, random_seed=0, progressbar=False
    )
    data = {f"d{i}": {"n": np.arange(3 if i < 5 else 2)} for i in range(7)}
    options = {"refine": False, "random_seed": 1, "posterior_predictive": True}
    found = posterior.sample(data, 20, store=tmp_path / "a.zarr", **options)
    drawn = found["posterior_predictive"]["n"]
    assert drawn.dtype.kind == "f"
    np.testing.assert_array_equal(np.isnan(drawn[0, 0]).sum("obs"), [0] * 5 + [1] * 2)
    assert (drawn.max() < 1e6) and (drawn.min() == 0)


def test_parts_fit_memory_and_chunks(posterior):
    layout = posterior.layout

    def size(each: int, chunk: int | None = None) -> int:
        data = datasets(600)
        return Parts.of(
            data if chunk is None else data.chunk(dataset=chunk), layout, lambda first: each
        ).size

    assert size(0) == TOGETHER == 256
    assert size(2**24) == 16 and size(2**40) == 1
    assert size(0, 10) == 250  # whole chunks
    assert size(0, 500) == 250 and size(2**24, 30) == 15  # whole parts of a chunk
    with pm.Model(coords={"obs": range(2), "cell": range(50)}) as wide:
        x = pm.Data("x", np.zeros(2), dims="obs")
        slope = pm.Normal("slope")
        pm.Deterministic("map", slope * np.ones(50), dims="cell")
        pm.Deterministic("line", slope * x, dims="obs")
        pm.Normal("y", slope * x, 1, observed=np.zeros(2), dims="obs")
    compiled = compile_model(wide, covariates=["x"])
    first = {k: v.values[0] for k, v in datasets(1).items()}  # six rows, where the model has two
    each = partial(bytes_of, compiled, 1000)
    z_and_stats = 8 * 1000 * (1 + 8)
    assert each([], first) == z_and_stats
    assert each(["map", "line"], first) == z_and_stats + 8 * 1000 * (50 + 6)
    assert each([], first, terms=1) == z_and_stats + 8 * 1000 * 6


def test_another_model_or_other_data_are_another_job(posterior, tmp_path):
    parts = Parts.of(datasets(3), posterior.layout)
    other = datasets(3)
    other["y"][0, 0] += 1
    assert parts.about() != Parts.of(other, posterior.layout).about()
    assert parts.about() == Parts.of(datasets(3), posterior.layout).about()
    with pm.Model(coords={"obs": range(6)}) as wider:
        x = pm.Data("x", np.zeros(6), dims="obs")
        slope = pm.Normal("slope", 0, 2)
        pm.Normal("y", slope * x, 1, observed=np.zeros(6), dims="obs")
    first = parts.first(posterior.layout)
    one, two = (
        about_model(pmcl.compile_model(m, covariates=["x"]), first) for m in (model(), wider)
    )
    assert one["model"] == two["model"] and one["log densities"] != two["log densities"]


def test_covariates_that_a_state_cannot_hold(client, tmp_path, together):
    def made(rng, length):
        return rng.normal(size=length)

    posterior = pmcl.fit_amortized(
        model(), covariates={"x": made}, network=NETWORK, steps=20, random_seed=0,
        progressbar=False,
    )  # fmt: skip
    options = {"refine": False, "random_seed": 1}
    found = posterior.sample(datasets(3), 20, store=tmp_path / "a", client=client, **options)
    same(found, posterior.sample(datasets(3), 20, **options))


def test_devices_of_this_process_are_none_of_a_cluster(posterior, client, tmp_path):
    import jax

    with pytest.raises(ValueError, match="each worker has devices of its own"):
        posterior.sample(
            datasets(2), 20, store=tmp_path / "a", client=client, devices=jax.devices()
        )


def test_gaps_in_a_later_part(tmp_path, together):
    """Counts, of which one is missing in the second part only."""
    with pm.Model(coords={"obs": range(3)}) as counts:
        pm.Poisson("n", pm.Gamma("rate", 2, 1), observed=np.ones(3, int), dims="obs")
    n = np.random.default_rng(0).poisson(2, size=(8, 3)).astype(float)
    n[6, 1] = np.nan
    data = xr.Dataset({"n": (("dataset", "obs"), n)})
    options = {"refine": pmcl.Refine(steps=0, rounds=0), "draws": 300, "random_seed": 3}
    options |= {"fallback": None}
    found = pmcl.refine(counts, data, store=tmp_path / "a.zarr", progressbar=False, **options)
    np.testing.assert_array_equal(found["observed_data"]["n"], n)
    assert list(found["posterior"]["dataset"].values) == [*map(str, range(8))]
    assert np.isfinite(found["posterior"]["rate"]).all()


def test_a_cluster_needs_a_store(posterior, client):
    for call in (
        lambda: posterior.sample(datasets(2), 20, client=client),
        lambda: pmcl.refine(model(), datasets(2), client=client),
        lambda: pmcl.sample_reference(model(), datasets(2), client=client),
    ):
        with pytest.raises(ValueError, match="expected `store=`"):
            call()


def test_without_the_extra_the_error_names_it(posterior, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=r"pmcl\[cluster\]"):
        posterior.sample(datasets(2), 20, store=tmp_path / "a.zarr", client=object())


def test_names_must_differ(posterior, tmp_path):
    data = datasets(3).assign_coords(dataset=["a", "b", "a"])
    with pytest.raises(pmcl.DataError, match="'a' came more than once"):
        posterior.sample(data, 20, store=tmp_path / "a.zarr")


@pytest.mark.slow
def test_a_hundred_thousand_datasets(posterior, client, tmp_path):
    data = datasets(1000)
    rng = np.random.default_rng(1)
    for i in range(100):
        part = data.assign_coords(dataset=[f"star {1000 * i + k:06d}" for k in range(1000)])
        part = part.assign(y=part["y"] + rng.normal(size=part["y"].shape))
        if i == 0:
            part.chunk(dataset=1000).to_zarr(tmp_path / "data.zarr")
        else:
            part.chunk(dataset=1000).to_zarr(tmp_path / "data.zarr", append_dim="dataset")
    lazy = xr.open_zarr(tmp_path / "data.zarr")
    found = posterior.sample(
        lazy, 200, refine=False, random_seed=1, store=tmp_path / "draws.zarr", client=client
    )
    assert found["posterior"].sizes == {"chain": 1, "draw": 200, "dataset": 100_000}
    assert np.isfinite(found["dataset_stats"]["efficiency"]).all()
    some = found["posterior"]["slope"][0, :, ::10_000].values
    assert np.isfinite(some).all() and (some.std(axis=0) > 0).all()
    peaks = client.run(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
    assert max(peaks.values()) < 3.0  # GiB
