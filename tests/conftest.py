"""What every test file shares: a compilation cache that outlives the run, and the papers' data."""

import os
from collections.abc import Iterator
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

import jax
import numpy as np
import pytest

if TYPE_CHECKING:
    from pmcl.compile import CompiledModel, Simulator
    from pmcl.networks import Amortizer, Network

ROOT = Path(__file__).resolve().parents[1]

jax.config.update("jax_compilation_cache_dir", str(ROOT / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


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


@pytest.fixture(autouse=True)
def few_memory_maps() -> Iterator[None]:
    """Forget compiled code before the process has as many memory maps as Linux allows (65,530).

    Every function that JAX compiles for the CPU takes some, and beyond the limit the next one ends
    in a segmentation fault.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 25_000:
        jax.clear_caches()


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
