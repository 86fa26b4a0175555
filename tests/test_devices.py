"""Datasets spread over devices: forced host devices in a process, and two processes."""

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import get_ident

import jax
import numpy as np
import pytest

from pmcl.data.batching import over_chunks, over_datasets
from pmcl.data.task import Batch
from pmcl.runtime import devices, precision
from pmcl.runtime.jitting import jit

PROGRAM = Path(__file__).parent / "programs" / "spread_over_devices.py"


def started(path: Path, *arguments: object, host_devices: int) -> subprocess.Popen[str]:
    flags = os.environ.get("XLA_FLAGS", "").split()
    flags = [f for f in flags if "host_platform_device_count" not in f]
    flags.append(f"--xla_force_host_platform_device_count={host_devices}")
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(path), *map(str, arguments)],
        env={**os.environ, "XLA_FLAGS": " ".join(flags)},
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process: subprocess.Popen[str], path: Path) -> dict:
    _, error = process.communicate(timeout=1800)
    assert process.returncode == 0, error[-4000:]
    return json.loads(path.read_text())


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = tmp_path_factory.mktemp("devices") / "alone.json"
    return result(started(path, 0, host_devices=1), path)


def same(found: dict, expected: dict) -> None:
    for name in found.keys() - {"devices", "shared"}:
        a, b = np.asarray(found[name]), np.asarray(expected[name])
        assert a.shape == b.shape and np.isfinite(a).all()
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3, err_msg=name)


@pytest.mark.slow
def test_eight_devices_give_what_one_gives(alone: dict, tmp_path: Path) -> None:
    found = result(started(tmp_path / "eight.json", 8, host_devices=8), tmp_path / "eight.json")
    assert found["devices"] == 8 and found.keys() == alone.keys()
    assert max(found["shared"]) == 8 and alone["shared"] == [1]
    same(found, alone)


@pytest.mark.slow
def test_two_processes_give_what_one_gives(alone: dict, tmp_path: Path) -> None:
    port, paths = free_port(), [tmp_path / "first.json", tmp_path / "second.json"]
    both = [started(path, 4, rank, port, host_devices=2) for rank, path in enumerate(paths)]
    for process, path in zip(both, paths, strict=True):
        found = result(process, path)
        assert found["devices"] == 4 and max(found["shared"]) == 4
        same(found, alone)


def test_work_is_spread() -> None:
    program = """
import jax, numpy as np, jax.numpy as jnp
from pmcl.data.batching import over_datasets
from pmcl.data.task import Batch
from pmcl.runtime import devices
from pmcl.runtime.jitting import jit

@jit
def twice(batch):
    return over_datasets(lambda values, mask: 2 * values["y"], batch)

batch = Batch({"y": jnp.arange(16.0)}, None)
whole = twice(batch)
with devices.scope(jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))):
    assert devices.number() == 8 and devices.even(9) == 16
    spread = twice(batch)
assert len(whole.devices()) == 1
assert sorted(s.data.shape for s in spread.addressable_shards) == [(2,)] * 8
assert len({s.index for s in spread.addressable_shards}) == 8
assert (np.asarray(whole) == devices.gathered(spread)).all()
with devices.scope(3):
    odd = twice(batch)  # 16 datasets cannot be shared by three
assert (np.asarray(whole) == devices.gathered(odd)).all()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_outside_of_a_scope_nothing_changes() -> None:
    assert devices.number() == 1 and devices.even(7) == 7 and devices.writes()
    tree = {"x": np.zeros(3)}
    assert devices.spread(tree) is tree and devices.settled(tree)["x"] is tree["x"]
    assert devices.filled(tree, 3)[0] is tree and devices.filled(tree, 3)[1] is None
    with devices.scope(None):
        assert devices.number() == 1


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (0, ValueError, "from 1 to"),
        (10_000, ValueError, "got 10000"),
        ([], ValueError, "at least one"),
        ("gpu", TypeError, "'gpu'"),
        (True, TypeError, "True"),
        ([1], ValueError, "at least one JAX device"),
    ],
)
def test_devices_that_are_none(given: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        devices.mesh_of(given)  # type: ignore[arg-type]


def test_weights_are_free_to_go_elsewhere_afterwards() -> None:
    with devices.scope(1):
        held = jax.device_put(np.ones(2), jax.devices()[0])
    assert held.committed and not devices.settled({"x": held})["x"].committed


def test_one_device_is_a_mesh_of_one() -> None:
    mesh = devices.mesh_of(jax.devices()[:1])
    assert mesh is not None and mesh.size == 1


def test_chunks_on_several_cores_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads have this one's settings of JAX, compile nothing anew, and keep the order."""
    batch = Batch({"y": np.arange(40.0).reshape(20, 2)}, None)
    threads, told, traced = set(), [], []

    @jit
    def total(batch: Batch, row: np.ndarray) -> jax.Array:
        traced.append(1)
        return over_datasets(lambda values, _, x: values["y"].sum() + x, batch, row)

    def one(batch: Batch, row: np.ndarray) -> jax.Array:
        threads.add(get_ident())
        return total(batch, row)

    rows, order = np.random.default_rng(0).normal(size=20), np.arange(20)[::-1]
    with precision.scope():
        for cores in (4, 1):
            monkeypatch.setattr(devices, "cores", lambda n=cores: n)
            found = over_chunks(one, batch, order, rows, size=3, advance=told.append)
            assert found.dtype == float  # 64 bits in every thread
            np.testing.assert_allclose(found, 4.0 * order + 1 + rows, rtol=1e-15)
    assert len(threads) > 1 and len(traced) == 1 and told == 2 * [3, 3, 3, 3, 3, 3, 2]
    monkeypatch.setattr(devices, "cores", lambda: 4)
    with pytest.raises(ZeroDivisionError):
        over_chunks(lambda _, x: 1 / int(x[0] < 6), batch, order, order, size=3)


def test_threads_have_all_settings_of_the_one_that_starts_them() -> None:
    names = ("debug_infs", "default_prng_impl", "numpy_dtype_promotion", "disable_jit")

    def now() -> list:
        return [getattr(jax.config, f"jax_{name}") for name in names]

    with jax.debug_infs(True), jax.default_prng_impl("rbg"), jax.disable_jit():
        with jax.numpy_dtype_promotion("strict"):
            scope, expected = devices.scope_of_threads(), now()

    def seen() -> list:
        with scope():
            return now()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(seen).result() == expected != now()


def test_a_worker_has_its_share_of_the_cores() -> None:
    with devices.at_most(1):
        assert devices.cores() == 1
