"""Files that are written whole or not at all."""

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

if TYPE_CHECKING:
    pass


def check_sum(value: np.ndarray) -> int:
    """Tell an array from others."""
    return zlib.crc32(np.ascontiguousarray(value).tobytes())


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a sibling of a file to write to, and put it in the file's place at the end.

    Whatever happens in between, who reads the file finds the old one or the new one, never half.

    Raises
    ------
    OSError
        Where the folder or the disk does not take it; an old file is left as it was.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise OSError(
            error.errno,
            f"could not be written ({error.strerror or error}); what was there before is as it "
            "was. Make room, or choose a folder that can be written to",
            str(path),
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink()  # there only where something went wrong


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
