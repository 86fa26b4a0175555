"""What every test file shares: a compilation cache that outlives the run, and the papers' data."""

import os
from pathlib import Path

# pytest-xdist already runs one process a core: a library's own threads would only compete.
# Before anything below imports NumPy, which reads these once.
if "PYTEST_XDIST_WORKER" in os.environ:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")

import jax
import pytest

ROOT = Path(__file__).resolve().parents[1]

# compiling, not computing, is what these tests spend their time on
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
