"""Results written to Zarr part by part, in any order, for more datasets than memory holds."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from filelock import FileLock, Timeout

from pmcl.data.label_text import storable
from pmcl.data.task import DATASET
from pmcl.draws.side_by_side import in_one
from pmcl.runtime.files import written_whole

_ABOUT = "about.json"
_STORE = "store.zarr"


class Folder(NamedTuple):
    """A hidden folder beside the target, in which results are written until all are there.

    It has the Zarr store, a file for each part that is done, and what tells the job from others. A
    part is done once its file is there; who writes parts needs nothing but this tuple.

    Attributes
    ----------
    path : str
    number : int
        Datasets in all.
    size : int
        Datasets of a part, and of a chunk of every array.
    """

    path: str
    number: int
    size: int

    @property
    def parts(self) -> int:
        return -(-self.number // self.size)

    @property
    def store(self) -> Path:
        return Path(self.path) / _STORE

    def begin(self, part: int) -> int:
        """Position of a part's first dataset."""
        return part * self.size

    def is_done(self, part: int) -> bool:
        """Whether a part has been written whole."""
        return self._note(part).exists()

    def left(self) -> list[int]:
        """Parts that are not done."""
        return [i for i in range(self.parts) if not self.is_done(i)]

    def write(self, part: int, tree: xr.DataTree, **more: Any) -> None:
        """Write one part; the first to be written has to be so alone.

        Parameters
        ----------
        part : int
        tree : xarray.DataTree
            Results of `sample`, `refine` or `sample_reference`.
        **more
            What else is to be known of the part, for JSON.
        """
        attrs = tree["posterior"].attrs
        begin = self.begin(part)
        there = self.store.exists()
        for name, node in tree.children.items():
            data = _with_text(node.to_dataset())
            if not there:
                self._create(name, data)
            _check_kinds(self.store, name, data)
            fixed = [k for k, v in data.variables.items() if DATASET not in v.dims]
            rows = {DATASET: slice(begin, begin + data.sizes[DATASET])}
            data.drop_vars(fixed).to_zarr(
                self.store, group=name, region=rows, mode="r+", consolidated=False
            )
        said = {"engine": attrs["engine"], "levels": attrs.get("levels", "")}
        note = {"seconds": attrs["sampling_time"], **said, **more}
        with written_whole(self._note(part)) as file:
            file.write(json.dumps(note).encode())

    def notes(self) -> list[dict]:
        """What is known of every part, in their order."""
        return [json.loads(self._note(i).read_text()) for i in range(self.parts)]

    def open(self, token: str) -> None:
        """Say that there is room for every part, and that others may write, who know the token."""
        (Path(self.path) / f"{token}.open").touch()

    def is_open(self, token: str) -> bool:
        """Whether the folder is here, too, and may be written to."""
        return (Path(self.path) / f"{token}.open").exists()

    def finish(
        self, target: Path, names: Sequence[str], whole: Mapping[str, xr.Dataset]
    ) -> tuple[xr.DataTree, list[dict[str, Any]]]:
        """Put the store in its place, with groups that were not written by parts, and open it."""
        for name, data in whole.items():
            _with_text(data).to_zarr(
                self.store, group=name, mode="w", consolidated=False, zarr_format=3
            )
        import zarr

        root = zarr.open_group(self.store, mode="r+")
        for _, group in root.groups():
            # xarray writes no index by parts
            coordinate = group.get(DATASET)
            if isinstance(coordinate, zarr.Array):
                coordinate[:] = np.asarray(names, dtype=object)
        notes = self.notes()
        engines = {e for n in notes for e in n["engine"].split(", ")}
        levels = in_one(n.get("levels", "") for n in notes)
        _describe(
            self.store,
            sampling_time=sum(n["seconds"] for n in notes),
            engine=", ".join(sorted(engines)),
            **({"levels": levels} if levels else {}),
        )
        self.store.replace(target)
        # Without it what cannot be removed counts for nothing.
        (Path(self.path) / _ABOUT).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)
        return xr.open_datatree(target, engine="zarr", consolidated=False), notes

    def _note(self, part: int) -> Path:
        return Path(self.path) / f"{part}.json"

    def _create(self, group: str, data: xr.Dataset) -> None:
        """Make a group whose arrays have room for all datasets; what lacks the dim is written."""
        import zarr

        encoding = {
            str(k): {
                "chunks": tuple(
                    max(self.size if d == DATASET else n, 1) for d, n in v.sizes.items()
                )
            }
            for k, v in data.variables.items()
        }
        data.to_zarr(
            self.store, group=group, mode="a", consolidated=False, zarr_format=3, encoding=encoding
        )
        there = zarr.open_group(self.store, path=group, mode="r+")
        for name, v in data.variables.items():
            array = there[str(name)]
            assert isinstance(array, zarr.Array)
            array.resize(tuple(self.number if d == DATASET else n for d, n in v.sizes.items()))


@contextmanager
def one_writer(target: Path) -> Iterator[None]:
    """Refuse results that another process is writing at this moment; of one that died, go on.

    Raises
    ------
    FileExistsError
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.absolute().with_name(f".{target.name}.lock")
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise FileExistsError(
            f"store: another process is writing {target} now. Wait for it, or choose another "
            f"folder; if there is none any more, remove {path}."
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):  # the next one makes it anew
            path.unlink()
        lock.release()


def folder_for(path: str | os.PathLike, about: Mapping[str, Any], number: int, size: int) -> Folder:
    """Make the folder for results that will be at `path`, or find the one that was left there.

    Parameters
    ----------
    path : path
        Of the results.
    about : mapping
        What tells this job from others, for JSON.
    number, size : int

    Raises
    ------
    FileExistsError
        Where there is something at `path` already, or another job was cut off there.
    """
    target = Path(path)
    if target.exists():
        raise FileExistsError(
            f"store: {target} is there already; expected the name of a new folder. Remove it, or "
            "choose another."
        )
    hidden = target.absolute().with_name(f".{target.name}.part")
    found = Folder(str(hidden), number, size)
    text = json.dumps({**about, "datasets": number, "together": size}, sort_keys=True)
    label = hidden / _ABOUT
    begun = label.exists() and found.store.exists() and any(hidden.glob("[0-9]*.json"))
    if begun and label.read_text() != text:
        before, now = json.loads(label.read_text()), json.loads(text)
        differ = sorted(k for k in {**before, **now} if before.get(k) != now.get(k))
        raise FileExistsError(
            f"store: {hidden} has results of a job that was cut off, and that differs from this "
            f"one in {differ}. Repeat that job, remove the folder, or choose another store."
        )
    if not begun:
        # nothing of worth: at most a first part that was being written
        shutil.rmtree(hidden, ignore_errors=True)
        with written_whole(label) as file:
            file.write(text.encode())
    return found


def _with_text(data: xr.Dataset) -> xr.Dataset:
    """Text of any length: the names of another part may be longer."""
    data = storable(data)
    text = {k: v.astype(object) for k, v in data.variables.items() if v.dtype.kind == "U"}
    return data.assign({k: v for k, v in text.items() if k in data.data_vars}).assign_coords(
        {k: v for k, v in text.items() if k in data.coords}
    )


def _check_kinds(store: Path, group: str, data: xr.Dataset) -> None:
    """Refuse numbers of another kind than those of the first part: NaN is no whole number.

    Raises
    ------
    TypeError
    """
    import zarr

    there = zarr.open_group(store, path=group, mode="r")
    for name, value in data.data_vars.items():
        array = there[str(name)]
        assert isinstance(array, zarr.Array)
        kinds = array.dtype.kind, value.dtype.kind
        if set(kinds) <= set("biuf") and kinds[0] != kinds[1]:
            raise TypeError(
                f"store: expected values of type {array.dtype} of {name!r}, as in the first part, "
                f"got {value.dtype}."
            )


def _describe(folder: Path, **attributes: float | str) -> None:
    import zarr

    zarr.open_group(folder, mode="r+", path="posterior").attrs.update(attributes)
