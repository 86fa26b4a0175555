"""A DataTree as one file: Zarr in a zip, checked against a manifest before anything is decoded.

Arrays lie in the zip uncompressed by Zarr (the zip compresses them), one chunk each, so that a
file's size bounds what reading it can take, and no codec but the identity is ever run.
"""

import asyncio
import hashlib
import json
import os
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pmcl.archive.errors import StateError
from pmcl.runtime.files import from_json, written_whole

MANIFEST = "pmcl-manifest.json"
LARGEST = 2**31  # bytes, after decompression
_MOST_FILES = 20_000
_LONGEST_METADATA = 2**22

_TYPES = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float32", "float64",
}  # fmt: skip

_TEXT = "fixed_length_utf32"
_LONGEST_TEXT = 4096  # bytes


def write_archive(path: str | os.PathLike, tree: xr.DataTree) -> None:
    """Write a tree to one file; a crash leaves the old file or the new one, never half.

    Raises
    ------
    StateError
        Where the folder or the disk does not take it; an old file is left as it was.
    """
    target = Path(path)
    files = _encoded(tree)
    manifest = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        for name, data in files.items()
    }
    text = json.dumps({"files": manifest}, indent=0).encode()
    try:
        with written_whole(target) as file, zipfile.ZipFile(file, "w") as archive:
            for name, data in {MANIFEST: text, **files}.items():
                # A fixed date: the same state gives the same file.
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    except OSError as error:
        raise StateError(f"{target}: {error.strerror or error}.") from error


def read_archive(path: str | os.PathLike, *, largest: int = LARGEST) -> xr.DataTree:
    """Read a tree that :func:`write_archive` wrote; anything else is refused.

    Parameters
    ----------
    path : path
    largest : int
        Most bytes, after decompression, that a file may hold.

    Raises
    ------
    StateError
        Where the file is not there, not one of these, damaged, or too large.
    """
    source = Path(path)
    try:
        return _decoded(_checked(source, largest))
    except StateError:
        raise
    except FileNotFoundError as error:
        raise StateError(f"{source}: there is no such file.") from error
    except Exception as error:  # whatever a file may hold, nothing else may come of it
        raise StateError(f"{source}: not a pmcl state, or damaged ({error!r}).") from error


def group(tree: xr.DataTree, name: str, where: str) -> xr.Dataset:
    """Return one group of a tree that was read; an error where there is none."""
    if name not in tree.children:
        raise StateError(f"{where}: expected a group {name!r}.")
    return tree.children[name].to_dataset(inherit=False)


def _encoded(tree: xr.DataTree) -> dict[str, bytes]:
    import zarr

    store = zarr.storage.MemoryStore()
    encoding = {
        node.path: {
            str(name): {"compressors": None, "chunks": tuple(max(n, 1) for n in array.shape)}
            for name, array in node.to_dataset().variables.items()
        }
        for node in tree.subtree
    }
    with warnings.catch_warnings():
        # Fixed-length text is still an extension of Zarr's specification.
        warnings.filterwarnings("ignore", message=".*does not have a Zarr V3 specification.*")
        warnings.filterwarnings("ignore", category=zarr.errors.UnstableSpecificationWarning)
        tree.to_zarr(
            store, mode="w", consolidated=False, zarr_format=3, encoding=encoding,
            write_inherited_coords=False,
        )  # fmt: skip

    async def collect() -> dict[str, bytes]:
        from zarr.core.buffer import default_buffer_prototype

        found = {}
        async for key in store.list():
            buffer = await store.get(key, prototype=default_buffer_prototype())
            assert buffer is not None
            found[key] = buffer.to_bytes()
        return found

    return dict(sorted(asyncio.run(collect()).items()))


def _decoded(files: dict[str, bytes]) -> xr.DataTree:
    import zarr
    from zarr.core.buffer import cpu

    store = zarr.storage.MemoryStore({k: cpu.Buffer.from_bytes(v) for k, v in files.items()})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=zarr.errors.UnstableSpecificationWarning)
        tree = xr.open_datatree(store, engine="zarr", consolidated=False, chunks=None)  # type: ignore[arg-type]
        return tree.load()


def _checked(source: Path, largest: int) -> dict[str, bytes]:
    """Return the files of an archive whose sums, sizes and metadata are all as they should be."""
    with source.open("rb") as file, zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if len(entries) > _MOST_FILES:
            raise StateError(f"{source}: expected at most {_MOST_FILES} files, got {len(entries)}.")
        names = [e.filename for e in entries]
        if len(set(names)) != len(names):
            raise StateError(f"{source}: a name comes twice in the archive.")
        for name in names:
            parts = name.split("/")
            if name.startswith("/") or "\\" in name or any(p in ("", ".", "..") for p in parts):
                raise StateError(f"{source}: {name!r} is no name of a file in a state.")
        if MANIFEST not in names:
            raise StateError(f"{source}: not a pmcl state (it has no {MANIFEST}).")
        text = _bounded(archive, archive.getinfo(MANIFEST), _LONGEST_METADATA * 4)
        listed = from_json(text)["files"]
        if sorted(listed) != sorted(n for n in names if n != MANIFEST):
            raise StateError(f"{source}: its files are not those of its manifest.")
        sizes = [entry["bytes"] for entry in listed.values()]
        if not all(isinstance(n, int) and n >= 0 for n in sizes) or sum(sizes) > largest:
            raise StateError(f"{source}: more than {largest} bytes; pass a larger `largest`.")
        files = {}
        for entry in entries:
            if entry.filename == MANIFEST:
                continue
            expected = listed[entry.filename]
            data = _bounded(archive, entry, expected["bytes"])
            if len(data) != expected["bytes"] or (
                hashlib.sha256(data).hexdigest() != expected["sha256"]
            ):
                raise StateError(f"{source}: {entry.filename} is damaged (its sum is another).")
            files[entry.filename] = data
    for name, data in files.items():
        if name.split("/")[-1] == "zarr.json":
            _check_metadata(source, name, data, files)
    known = {n.removesuffix("zarr.json") for n in files if n.split("/")[-1] == "zarr.json"}
    strangers = [n for n in files if not any(n.startswith(k) for k in known if k) and "/" in n]
    if strangers or "zarr.json" not in files:
        raise StateError(f"{source}: not a pmcl state ({strangers[:3]} belong to nothing).")
    return files


def _bounded(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
    """Read an entry, but never more than it may have, whatever its header says."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & 1:
        raise StateError(f"{entry.filename}: compressed in a way that states are not.")
    with archive.open(entry) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise StateError(f"{entry.filename}: larger than its manifest says.")
    return data


def _check_metadata(source: Path, name: str, data: bytes, files: dict[str, bytes]) -> None:
    """Check a group's or an array's metadata against what `write_archive` writes."""
    if len(data) > _LONGEST_METADATA:
        raise StateError(f"{source}: {name} is too long.")
    found = from_json(data)
    where = f"{source}: {name}"
    _expect(found.get("zarr_format") == 3, where, "zarr_format 3", found.get("zarr_format"))
    _expect(isinstance(found.get("attributes", {}), dict), where, "attributes", "others")
    if found.get("node_type") == "group":
        extra = set(found) - {"zarr_format", "node_type", "attributes", "consolidated_metadata"}
        _expect(not extra and not found.get("consolidated_metadata"), where, "a group", extra)
        return
    _expect(found.get("node_type") == "array", where, "an array", found.get("node_type"))
    shape = found["shape"]
    _expect(
        isinstance(shape, list) and all(type(n) is int and 0 <= n < 2**40 for n in shape),
        where, "a shape", shape,
    )  # fmt: skip
    size = _item_size(where, found["data_type"])
    chunk = found["chunk_grid"]["configuration"]["chunk_shape"]
    _expect(chunk == [max(n, 1) for n in shape], where, "one chunk", chunk)
    codecs = [c["name"] for c in found["codecs"]]
    _expect(codecs == ["bytes"], where, "no codec but bytes", codecs)
    little = found["codecs"][0].get("configuration", {}).get("endian", "little")
    _expect(little == "little", where, "little endian", little)
    _expect(not found.get("storage_transformers"), where, "no transformers", "some")
    names = found.get("dimension_names") or []
    _expect(
        len(names) == len(shape) and all(isinstance(n, str) for n in names),
        where, f"{len(shape)} named dims", names,
    )  # fmt: skip
    number = 1
    for n in shape:
        number *= n
    here = name.removesuffix("zarr.json")
    key = here + "/".join(["c", *["0"] * len(shape)])
    chunks = [k for k in files if k.startswith(here + "c") and k != key]
    _expect(not chunks, where, "one chunk", chunks[:3])
    # A chunk of nothing but fill values is not written.
    there = len(files[key]) if key in files else None
    _expect(there in (None, number * size), where, f"{number * size} bytes", there)
    if there is None:
        _expect(number * size <= 2**26, where, "data, not fill values alone", number * size)


def _item_size(where: str, data_type: Any) -> int:
    if isinstance(data_type, str):
        _expect(data_type in _TYPES, where, "a type of number", data_type)
        return np.dtype(data_type).itemsize
    _expect(data_type.get("name") == _TEXT, where, "numbers or text", data_type)
    length = data_type["configuration"]["length_bytes"]
    _expect(type(length) is int and 0 < length <= _LONGEST_TEXT, where, "short text", length)
    return length


def _expect(true: bool, where: str, expected: str, got: object) -> None:
    if not true:
        raise StateError(f"{where}: expected {expected}, got {got!r}.")
