"""A cache of compiled functions, so that a later process compiles nothing that an earlier one did.

Off by default in Python, on at the command line. Nothing here imports JAX before it has to.
"""

import hashlib
import os
import platform
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import platformdirs

_MOST = 2**30  # bytes; what was used longest ago goes first


def _settings(folder: Path) -> dict[str, str | int | float]:
    """Options of JAX, by name."""
    return {
        "jax_compilation_cache_dir": str(folder),
        "jax_compilation_cache_max_size": _MOST,
        "jax_persistent_cache_min_compile_time_secs": 0.05,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }


def compilation_cache(path: str | os.PathLike | None = None) -> Path | None:
    """Keep what JAX compiles in a folder, and take it from there in later processes.

    It is JAX's own persistent compilation cache, for everything that this process compiles from
    here on; the same as setting ``jax_compilation_cache_dir`` and three more options. One gigabyte
    is kept at most. A file of it that is damaged is a warning of JAX's, and compiled again.

    Parameters
    ----------
    path : path, optional
        By default a folder in the user's cache folder, whose name has the version of jaxlib and
        what the processor can do: code compiled for one is of no use to another.

    Returns
    -------
    Path or None
        The folder; None, with a warning, where it cannot be written.

    Examples
    --------
    >>> folder = pmcl.compilation_cache()  # doctest: +SKIP
    """
    folder = usable(path)
    if folder is None:
        return None
    import jax
    from jax.experimental.compilation_cache import compilation_cache as of_jax

    for name, value in _settings(folder).items():
        jax.config.update(name, value)
    of_jax.reset_cache()  # what was said of the cache before the first compilation would stand
    return folder


def for_the_command() -> Path | None:
    """Keep compiled functions as :func:`compilation_cache` does, before JAX is imported.

    A cache that the user, or whoever runs the command in a process of theirs, has set stays.

    Returns
    -------
    Path or None
        The folder where it is new, for a word about it.
    """
    if "jax" in sys.modules:
        import jax

        if not jax.config.jax_compilation_cache_dir:
            compilation_cache()
        return None
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return None
    new = not default_folder().exists()
    folder = usable(None)
    if folder is None:
        return None
    for name, value in _settings(folder).items():
        os.environ.setdefault(name.upper(), str(value))
    return folder if new else None


def default_folder() -> Path:
    """Where compiled functions are kept, by jaxlib's version and the processor's features."""
    try:
        about = Path("/proc/cpuinfo").read_text()
        features = next(
            line for line in about.splitlines() if line.startswith(("flags", "Features"))
        )
    except (OSError, StopIteration):
        features = f"{platform.machine()} {platform.processor()}"
    features = " ".join(sorted(features.split()))
    code = hashlib.blake2b(features.encode(), digest_size=4).hexdigest()
    return platformdirs.user_cache_path("pmcl") / f"jaxlib-{version('jaxlib')}-{code}"


def usable(path: str | os.PathLike | None) -> Path | None:
    """Make the folder; None, with a warning, where nothing can be written there."""
    folder = default_folder() if path is None else Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f"probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        warnings.warn(
            f"compilation_cache: {str(folder)!r} cannot be written ({error}); compiled functions "
            "are not kept.",
            stacklevel=3,
        )
        return None
    return folder
