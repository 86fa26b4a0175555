"""States that outlive the process: the same posterior again, or a plain refusal."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from tiny_model import TINY

import pmcl
from pmcl.archive import StateError, read_archive, write_archive
from pmcl.archive.zipped import MANIFEST

STRATEGIES = (
    pmcl.Replay(capacity=3, simulations=2),
    pmcl.ElasticWeightConsolidation(strength=0.1, draws=2, simulations=8),
    pmcl.SynapticIntelligence(strength=0.1),
    pmcl.OnlineLaplace(draws=2, simulations=8),
)


def slope(sigma: float = 1.0, *, prior: float = 1.0, rows: int = 12, name: str = "slope"):
    with pm.Model(coords={"obs": np.arange(rows)}) as model:
        x = pm.Data("x", np.zeros(rows), dims="obs")
        b = pm.Normal(name, 0, prior)
        pm.Normal("y", b * x, sigma, observed=np.zeros(rows), dims="obs")
    return model


def make(n: int, seed: int, rows: int = 12) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, rows))
    return {"x": x, "y": rng.normal(size=(n, 1)) * x + rng.normal(size=(n, rows))}


@pytest.fixture(scope="module")
def model() -> pm.Model:
    return slope()


def fit(model: pm.Model, **options) -> pmcl.AmortizedPosterior:
    return pmcl.fit_amortized(
        model,
        covariates={"x": pm.Normal.dist(0, 1)},
        exchangeable="obs",
        network=pmcl.Network(
            pmcl.DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=8, head_depth=1),
            pmcl.CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=8),
        ),
        steps=60,
        batch_size=16,
        validation=32,
        random_seed=0,
        progressbar=False,
        **options,
    )


@pytest.fixture(scope="module")
def pretrained(model) -> pmcl.AmortizedPosterior:
    return fit(model)


def adapt(posterior, name: str, seed: int, strategy=None):
    return posterior.adapt(
        make(3, seed), name=name, strategy=strategy, steps=30, patience=2, progressbar=False
    )


@pytest.fixture(scope="module")
def adapted(pretrained) -> pmcl.AmortizedPosterior:
    return adapt(adapt(pretrained, "u", 1, STRATEGIES), "v", 2)


@pytest.fixture(scope="module")
def saved(adapted, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("state") / "state.zarr.zip"
    pmcl.save(adapted, path)
    return path


def assert_same(a: pmcl.AmortizedPosterior, b: pmcl.AmortizedPosterior) -> None:
    for x, y in zip(
        *(jax.tree.leaves(eqx.filter(p.amortizer, eqx.is_array)) for p in (a, b)), strict=True
    ):
        np.testing.assert_array_equal(x, y)


def test_round_trip_gives_the_same_posterior(adapted, saved, model):
    found = pmcl.load(saved, model)
    assert_same(found, adapted)
    assert found.strategy == adapted.strategy and found.settings == adapted.settings
    assert found.structure == adapted.structure and found.seed == adapted.seed
    assert found.memory.tasks == adapted.memory.tasks == ("u", "v")
    assert found.memory.times == adapted.memory.times
    xr.testing.assert_identical(
        found.memory.stored().labelled(), adapted.memory.stored().labelled()
    )
    xr.testing.assert_identical(found.history, adapted.history)
    data = make(2, 9)
    for a, b in zip(
        *(p.sample(data, 50, refine=False, random_seed=5)["posterior"].to_dataset().values()
          for p in (found, adapted)), strict=True,
    ):  # fmt: skip
        np.testing.assert_array_equal(a, b)  # bit by bit


def test_going_on_from_a_loaded_state_is_going_on(adapted, saved, model):
    there = adapt(adapted, "w", 3)
    here = adapt(pmcl.load(saved, model), "w", 3)
    assert_same(here, there)
    assert [r.name for r in here.records] == ["u", "v", "w"]
    for a, b in zip(here.states, there.states, strict=True):
        assert a.kind == b.kind and a.tasks == b.tasks == ("u", "v", "w")
        if a.kind != "Replay":
            for x, y in zip(jax.tree.leaves(a.state), jax.tree.leaves(b.state), strict=True):
                np.testing.assert_array_equal(x, y)


def test_a_budget_of_simulations_goes_on_after_loading(model, tmp_path):
    posterior = fit(model, simulations=200)
    pmcl.save(posterior, tmp_path / "budget.zarr.zip")
    found = pmcl.load(tmp_path / "budget.zarr.zip", model)
    assert found.settings == posterior.settings and found.settings.simulations == 200
    more = [p.pretrain(20, progressbar=False) for p in (found, posterior)]
    assert_same(*more)
    with pytest.raises(ValueError, match="simulations: expected at least 20"):
        fit(model, simulations=5)


def test_a_state_reads_well_in_plain_xarray(saved):
    import zarr

    with pytest.warns(Warning, match="pmcl-manifest"):
        tree = xr.open_datatree(
            zarr.storage.ZipStore(saved, mode="r"), engine="zarr", consolidated=False
        )
    assert {"network", "memory", "model", "history", "strategies"} <= set(tree.children)
    assert tree["memory"]["y"].dims == ("dataset", "obs")
    assert [*tree["memory"]["task"].values] == ["u", "v"]
    assert any("summary" in str(n) for n in tree["network"].data_vars)


def test_memory_stays_at_home_where_asked(adapted, tmp_path, model):
    path = tmp_path / "public.zarr.zip"
    pmcl.save(adapted, path, include_memory=False)
    tree = read_archive(path)
    assert "memory" not in tree.children
    raw = b"".join(zipfile.ZipFile(path).read(n) for n in zipfile.ZipFile(path).namelist())
    for value in np.asarray(adapted.memory.stored().values["y"]).ravel()[:5]:
        assert value.tobytes() not in raw
    found = pmcl.load(path, model)
    assert len(found.memory) == 0
    assert_same(found, adapted)


def test_a_forgotten_task_leaves_no_data(adapted):
    found = adapted.forget("u")
    assert found.memory.tasks == ("v",) and [r.name for r in found.records] == ["v"]
    assert [s.kind for s in found.states] == ["Replay"]  # importance cannot be taken apart
    assert "u" not in found.records[0].stored
    assert len(found.forget("v").memory) == 0
    assert adapted.memory.tasks == ("u", "v")
    with pytest.raises(ValueError, match=r"forget: .*\['u', 'v'\], got 'w'"):
        adapted.forget("w")
    # and the strategy goes on with what is left
    assert adapt(found, "w", 4, STRATEGIES[0]).memory.tasks == ("v", "w")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: slope(prior=2.0), "log_prior at a stored point"),
        (lambda: slope(sigma=0.5), "log_likelihood at a stored point"),
        (lambda: slope(name="b"), "free differ.*'slope'"),
        (lambda: slope(rows=13), "differ.*'x'|differ.*'y'|differ.*'obs'"),
    ],
)
def test_another_model_is_refused_by_what_differs(saved, other, message):
    with pytest.raises(StateError, match=f"another model.*(?:{message})"):
        pmcl.load(saved, other())


def test_covariates_of_a_function_are_asked_for(model, pretrained, tmp_path):
    import dataclasses

    from pmcl.compile import make_simulator, read_covariates

    def draw(rng, n):
        return rng.normal(size=n)

    compiled = pretrained.compiled
    simulator = make_simulator(compiled, read_covariates({"x": draw}, compiled.covariates))
    path = tmp_path / "state.zarr.zip"
    pmcl.save(dataclasses.replace(pretrained, simulator=simulator), path)
    with pytest.raises(StateError, match=r"covariate 'x' came from a function.*pass covariates"):
        pmcl.load(path, model)
    assert_same(pmcl.load(path, model, covariates={"x": draw}), pretrained)


def test_a_strategy_of_ones_own_is_not_stored(pretrained, tmp_path):
    class Mine(pmcl.AbstractStrategy):
        def end(self, state, trace, now):
            return now.weights

    mine = adapt(pretrained, "u", 1, Mine())
    with pytest.raises(StateError, match=r"Mine.* cannot be stored|strategy Mine"):
        pmcl.save(mine, tmp_path / "state.zarr.zip")


def test_another_schema_is_refused_with_both_versions(saved, tmp_path, model):
    tree = read_archive(saved)
    tree.attrs["schema"] = 99
    write_archive(tmp_path / "new.zarr.zip", tree)
    with pytest.raises(StateError, match=r"schema 99 by pmcl '0.*reads schema 1"):
        pmcl.load(tmp_path / "new.zarr.zip", model)


# --- files ----------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_written_leaves_the_old_one(adapted, saved, tmp_path, monkeypatch):
    path = tmp_path / "state.zarr.zip"
    path.write_bytes(saved.read_bytes())

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateError, match=r"could not be written \(No space left on device\)"):
        pmcl.save(adapted, path)
    assert path.read_bytes() == saved.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # nothing half is left


def test_not_a_state(tmp_path, model):
    with pytest.raises(StateError, match="no such file"):
        pmcl.load(tmp_path / "none.zarr.zip", model)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(StateError, match="not a pmcl state, or damaged"):
        pmcl.load(tmp_path / "text", model)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "hello")
    with pytest.raises(StateError, match="it has no pmcl-manifest"):
        pmcl.load(tmp_path / "other.zip", model)


def rewritten(saved: Path, target: Path, change: Callable[[dict[str, bytes]], dict[str, bytes]]):
    """A file whose manifest fits what was changed: only its contents can give it away."""
    import hashlib

    with zipfile.ZipFile(saved) as archive:
        files = {n: archive.read(n) for n in archive.namelist() if n != MANIFEST}
    files = change(files)
    sums = {n: {"sha256": hashlib.sha256(d).hexdigest(), "bytes": len(d)} for n, d in files.items()}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, json.dumps({"files": sums}))
        for name, data in files.items():
            archive.writestr(name, data)


def edited(name: str, edit: Callable[[dict], None]) -> Callable[[dict], dict]:
    def change(files: dict[str, bytes]) -> dict[str, bytes]:
        key = name if name in files else next(n for n in files if n.endswith(name))
        found = json.loads(files[key])
        edit(found)
        return {**files, key: json.dumps(found).encode()}

    return change


HOSTILE = {
    "enormous array": edited("model/z/zarr.json", lambda m: m.update(shape=[10**9, 10**6])),
    "another type": edited("model/z/zarr.json", lambda m: m.update(data_type="complex128")),
    "an object type": edited(
        "model/z/zarr.json", lambda m: m.update(data_type={"name": "object", "configuration": {}})
    ),
    "a codec": edited(
        "model/z/zarr.json", lambda m: m["codecs"].append({"name": "numcodecs.pickle"})
    ),
    "many chunks": edited(
        "model/z/zarr.json", lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[1, 1])
    ),
    "path traversal": lambda f: {**f, "../outside.txt": b"x"},
    "absolute path": lambda f: {**f, "/tmp/outside.txt": b"x"},
    "renamed group": lambda f: {n.replace("network/", "netwerk/"): d for n, d in f.items()},
    "a stranger": lambda f: {**f, "code/run.py": b"import os"},
    "no object": edited("model/zarr.json", lambda m: m.clear()),
    "a list": lambda f: {**f, "model/zarr.json": b"[]"},
    "deep nesting": lambda f: {**f, "model/zarr.json": b"[" * 100_000},
    "a length that is none": edited(
        "memory/length/zarr.json", lambda m: m.update(shape=[2, 1], dimension_names=["a", "b"])
    ),
    "no model": lambda f: {n: d for n, d in f.items() if not n.startswith("model/")},
    "huge network": edited(
        "zarr.json",
        lambda m: m.get("attributes", {}).update(
            network=json.dumps(
                {"kind": "Network", "fields": {
                    "summary": {"kind": "DeepSet", "fields": {"width": 10**9}},
                    "flow": {"kind": "CouplingFlow", "fields": {}}}}
            )
        ),
    ),
    "code for a class": edited(
        "zarr.json",
        lambda m: m.get("attributes", {}).update(
            network=json.dumps({"kind": "os.system", "fields": {"command": "true"}})
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused(saved, tmp_path, model, change):
    target = tmp_path / "hostile.zarr.zip"
    rewritten(saved, target, change)
    begin = time.perf_counter()
    with pytest.raises(StateError):
        pmcl.load(target, model)
    assert time.perf_counter() - begin < 30
    assert [p.name for p in tmp_path.iterdir()] == [target.name]


def test_a_zip_bomb_is_refused(tmp_path):
    target = tmp_path / "bomb.zarr.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            MANIFEST, json.dumps({"files": {"zarr.json": {"bytes": 10, "sha256": ""}}})
        )
        archive.writestr("zarr.json", b"0" * 200_000_000)
    with pytest.raises(StateError, match="larger than its manifest says"):
        read_archive(target)


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Flip, cut, or repeat some bytes."""
    kind = rng.integers(4)
    if kind == 0:
        return data[: rng.integers(len(data))]
    found = bytearray(data)
    for at in rng.integers(len(data), size=rng.integers(1, 5)):
        found[at] = rng.integers(256) if kind == 1 else found[at] ^ (1 << rng.integers(8))
    if kind == 3:
        at, n = rng.integers(len(found)), rng.integers(1, 50)
        found[at : at + n] = b""
    return bytes(found)


@pytest.mark.parametrize("number", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_files_are_the_same_state_or_refused(saved, tmp_path, number):
    whole, rng = saved.read_bytes(), np.random.default_rng(number)
    original = read_archive(saved)
    refused = 0
    for _ in range(number):
        target = tmp_path / "damaged.zarr.zip"
        target.write_bytes(mutated(whole, rng))
        try:
            found = read_archive(target)
        except StateError:
            refused += 1
        else:
            xr.testing.assert_identical(found, original)
    assert refused > 0.8 * number


WRITER = """
import sys, xarray as xr, numpy as np
from pmcl.archive.zipped import write_archive
i = 0
while True:
    i += 1
    data = xr.Dataset({"x": ("n", np.full(200_000, float(i)))}, attrs={"i": i})
    write_archive(sys.argv[1], xr.DataTree.from_dict({"/": data}))
    print(i, flush=True)
"""


@pytest.mark.parametrize("number", [80, pytest.param(3000, marks=pytest.mark.slow)])
def test_mutated_contents_behind_a_good_manifest_only_fail_plainly(saved, tmp_path, number):
    """The sums fit here, so that what is read is really looked at."""
    rng = np.random.default_rng(number)
    target = tmp_path / "mutated.zarr.zip"
    refused = 0

    def change(files: dict[str, bytes]) -> dict[str, bytes]:
        names = sorted(n for n in files if n.endswith("zarr.json"))
        name = names[rng.integers(len(names))]
        return {**files, name: mutated(files[name], rng)}

    for _ in range(number):
        rewritten(saved, target, change)
        try:
            read_archive(target)
        except StateError:
            refused += 1
    assert refused > 0.3 * number
    assert [p.name for p in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize("times", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_while_saving_the_file_is_the_last_whole_state(tmp_path, times):
    rng = np.random.default_rng(0)
    for k in range(times):
        path = tmp_path / f"state-{k}.zarr.zip"
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()  # one state is there
        time.sleep(rng.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        done = max([1, *map(int, rest)])
        found = read_archive(path)
        assert found.attrs["i"] in (done, done + 1)  # the last that was finished, or said so late
        assert (found["x"].values == found.attrs["i"]).all()


ADAPTER = """
import sys
from pathlib import Path
import numpy as np, pmcl
state, work = Path(sys.argv[1]), Path(sys.argv[2])
strategy = (
    pmcl.Replay(capacity=3, simulations=2),
    pmcl.ElasticWeightConsolidation(strength=0.1, draws=2, simulations=8),
)
posterior = pmcl.models.named(f"{work / 'tiny.py'}:model").load(state)
print("loaded", flush=True)
for i in range(len(posterior.records), 6):
    half = state.with_name(f"{state.name}.{i}.half")
    task = {"y": np.random.default_rng(i).normal(i, 1, (2, 10))}
    posterior = posterior.adapt(
        task, name=f"task{i}", strategy=strategy, steps=400, patience=None, checkpoint=half,
        progressbar=False,
    )
    pmcl.save(posterior, state)
    print(i + 1, flush=True)
"""


def adapter(state: Path, work: Path) -> subprocess.Popen:
    """Adapt to six tasks, one after another, with a checkpoint; it says what is done."""
    return subprocess.Popen(
        [sys.executable, "-c", ADAPTER, str(state), str(work)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_killed_while_adapting_no_finished_task_is_lost(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    definition = pmcl.models.named(f"{tmp_path / 'tiny.py'}:model")
    fresh = tmp_path / "fresh.zarr.zip"
    pmcl.save(definition.fit(steps=50, random_seed=0, progressbar=False), fresh)
    ends, seconds = [], 0.0
    for _ in range(2):  # the second finds all compiled: its time counts
        ends.append(tmp_path / f"undisturbed{len(ends)}.zarr.zip")
        ends[-1].write_bytes(fresh.read_bytes())
        process = adapter(ends[-1], tmp_path)
        assert process.stdout is not None and process.stdout.readline() == "loaded\n"
        begin = time.monotonic()
        assert process.stdout.read().split()[-1] == "6" and process.wait() == 0
        seconds = time.monotonic() - begin
    expected = definition.load(ends[0])
    rng = np.random.default_rng(2)
    kills, rounds, halves = 0, 0, 0
    while kills < 50:
        state = tmp_path / f"state{rounds}.zarr.zip"
        state.write_bytes(fresh.read_bytes())
        rounds += 1
        finished = 0
        while finished < 6:
            process = adapter(state, tmp_path)
            assert process.stdout is not None and process.stdout.readline() == "loaded\n"
            try:
                process.wait(rng.uniform(0, 0.6) * seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
            said = process.stdout.read().split()
            found = definition.load(state)
            done = [r.name for r in found.records]
            assert done == [f"task{i}" for i in range(len(done))]
            assert len(done) >= max([finished, *map(int, said)])
            finished = len(done)
            halves += (state.with_name(f"{state.name}.{finished}.half")).exists()
        # interrupted or not, it ends in the same place
        assert_same(found, expected)
        xr.testing.assert_identical(
            found.memory.stored().labelled(), expected.memory.stored().labelled()
        )
    assert halves > 0  # some were killed in the middle of a task, and went on from there
