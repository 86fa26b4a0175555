"""What every test file shares: a compilation cache that outlives the run, and the papers' data."""

import gc
import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

# pytest-xdist already runs one process a core: a library's own threads would only compete.
# Before anything below imports NumPy, which reads these once.
if "PYTEST_XDIST_WORKER" in os.environ:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")

# Compiling, not computing, is what these tests spend their time on: this code is compiled three
# times as fast and runs half as fast. JAX reads it when it first compiles.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

# The same for what NUTS runs, which Numba compiles: in a fifth of the time.
os.environ.setdefault("NUMBA_OPT", "0")

# What is compiled outlives the run and the clone; the processes that tests start find it, too.
# The small programs as well: nine of ten take less than a tenth of a second, and most of the time.
# JAX, where it has to keep to a size, looks at every file before it writes one: that is done here.
CACHE = import_module("pmcl.runtime.caching").default_folder()
for name, value in {
    "JAX_COMPILATION_CACHE_DIR": str(CACHE.with_name(f"{CACHE.name}-tests")),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_COMPILATION_CACHE_MAX_SIZE": "-1",
}.items():
    os.environ.setdefault(name, value)

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

if TYPE_CHECKING:
    from pmcl.compile import CompiledModel, Simulator
    from pmcl.networks import Amortizer, Network

ROOT = Path(__file__).resolve().parents[1]
MOST = 4 * 2**30  # bytes of compiled functions, at the beginning of a run


def pytest_configure() -> None:
    """Drop the compiled functions that were used longest ago, before the workers start."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    kept = CACHE.with_name(f"{CACHE.name}-tests")
    size = 0
    about = [(path, path.stat()) for path in kept.glob("*")] if kept.is_dir() else []
    for path, stat in sorted(about, key=lambda one: one[1].st_atime, reverse=True):
        size += stat.st_size
        if size > MOST:
            path.unlink(missing_ok=True)


def pytest_collection_finish() -> None:
    """Look less often for garbage, and never among what is imported: it took a tenth."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 40)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Give the folder of the papers' data sets, which the environment variable PMCL_DATA names."""
    folder = os.environ.get("PMCL_DATA")
    if not folder:
        pytest.skip("needs the papers' data sets: set PMCL_DATA to their folder")
    path = Path(folder).resolve()
    if not path.is_dir():
        pytest.fail(f"PMCL_DATA: expected a folder, got {folder!r}, which is not one")
    return path


class NormalMean(NamedTuple):
    """A model whose posterior is known: ``mu ~ N(1, 2)`` and ten ``y ~ N(mu, 1)``."""

    compiled: "CompiledModel"
    simulator: "Simulator"

    def exact(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of the posterior of each dataset of ``y`` (dataset, row)."""
        y = np.asarray(y)
        precision = 1 / 2**2 + y.shape[-1]
        return (1 / 2**2 + y.sum(axis=-1)) / precision, np.full(y.shape[:-1], precision**-0.5)

    def amortizer(self, network: "Network | None" = None, *, seed: int = 0) -> "Amortizer":
        """Build a network that is not trained yet; a tiny one if none is given."""
        from pmcl.networks import CouplingFlow, DeepSet, InputLayout, Network, build_amortizer

        if network is None:
            flow = CouplingFlow(layers=1, width=8, depth=1, knots=4, affine_width=16)
            network = Network(
                DeepSet(outputs=4, width=8, depth=1, pooled=4, head_width=16, head_depth=1), flow
            )
        inputs = InputLayout.of(self.compiled.data, "obs")
        z, data = self.simulator.simulate(500, random_seed=1)
        return build_amortizer(network, inputs, z, data, key=jax.random.key(seed))


@pytest.fixture(scope="session")
def normal_mean() -> NormalMean:
    """Give the conjugate model that training and adaptation are tested on."""
    import pymc as pm

    from pmcl.compile import compile_model, make_simulator, read_covariates

    with pm.Model(coords={"obs": range(10)}) as model:
        mu = pm.Normal("mu", 1, 2)
        pm.Normal("y", mu, 1, observed=np.zeros(10), dims="obs")
    compiled = compile_model(model)
    return NormalMean(compiled, make_simulator(compiled, read_covariates({}, ())))
