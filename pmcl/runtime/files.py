"""Files that are written whole or not at all."""

import json
import math
import os
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if TYPE_CHECKING:
    pass


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON text as the standard has it: null for NaN, the largest numbers for infinite ones."""

    def plain(one: Any) -> Any:
        if isinstance(one, Mapping):
            return {str(k): plain(v) for k, v in one.items()}
        if isinstance(one, list | tuple):
            return [plain(v) for v in one]
        if isinstance(one, float) and not math.isfinite(one):
            return None if math.isnan(one) else math.copysign(sys.float_info.max, one)
        return one

    return json.dumps(plain(value), indent=indent, allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """Read JSON text as the standard has it: no NaN, and no key twice.

    Raises
    ------
    ValueError
    """

    def refuse(literal: str) -> Any:
        raise ValueError(f"expected a number, got {literal}")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError(f"a key comes twice among {[k for k, _ in pairs][:10]}")
        return found

    return json.loads(text, parse_constant=refuse, object_pairs_hook=once)


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
