"""Long tables from text files, with what is wrong in them said by column, line and value."""

import csv
import gzip
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pmcl.data.label_text import text
from pmcl.data.task import DataError

if TYPE_CHECKING:
    import pandas as pd

_PLAIN = r"-?(0|[1-9]\d*)(\.0|\.\d*[1-9])?"  # numbers that are written in one way only


def read_table(
    path: Path, separator: str, dataset: str, labels: Mapping[str, Any]
) -> "pd.DataFrame":
    """Read a text file with one line a row, the names of columns in the first.

    Names of datasets are text as it stands: 007 is not 7, and NA is a name. So are those in columns
    of `labels`, unless all are plain numbers, or numbers that are the model's and none the same.

    Raises
    ------
    DataError
        Where it seems to be separated otherwise, where columns come twice or lines are longer than
        the first, and where a column of numbers holds something else.
    """
    import pandas as pd

    first = pd.read_csv(path, sep="\x00", header=None, nrows=1, dtype=str, quoting=3)
    line = str(first.iloc[0, 0])
    others = [s for s in (",", ";", "\t", "|") if s != separator and s in line]
    if separator not in line and others:
        raise DataError(
            f"{path}: expected columns separated by {separator!r}, as its name says, got a first "
            f"line with {others[0]!r}: {line[:60]!r}. Save it with {separator!r}, numbers with a "
            "decimal point."
        )
    names = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str).iloc[0]
    twice = [str(n) for n, count in Counter(names.dropna()).items() if count > 1]
    if twice:
        raise DataError(f"{path}: columns {twice} come more than once; leave one of each.")
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            found = pd.read_csv(path, sep=separator, index_col=False, low_memory=False)
        except pd.errors.ParserWarning:
            raise DataError(
                f"{path}: expected lines of {len(names)} values, as the first has, got longer "
                "ones. Quote values that hold the separator."
            ) from None
    _check_short(found, path, separator)
    named = [name for name in found.columns if name == dataset or name in labels]
    if named:
        how = {"usecols": named, "dtype": str, "keep_default_na": False, "index_col": False}
        exact = pd.read_csv(path, sep=separator, **how)
        named = [
            n
            for n in named
            if n == dataset
            or not (
                exact[n].str.fullmatch(_PLAIN).all()
                or _are_the_models(exact[n], found[n], labels.get(n))
            )
        ]
        for n in named:  # nothing is no name
            found[n] = exact[n] if n == dataset else exact[n].where(exact[n] != "")
    for name in found.columns.drop(named):
        _check_numbers(found[name], f"{path}: column {name!r}", path, separator)
    return found


def _are_the_models(exact: "pd.Series", read: "pd.Series", own: Any) -> bool:
    """Whether labels are the model's as pandas reads them, and not as they stand: 01, TRUE."""
    ours = set() if own is None else {*text(own)}
    return (
        {*text(read)} <= ours and not {*exact} <= ours and read.nunique() == exact.nunique()
    )  # where two fall together something is lost


def _check_short(found: "pd.DataFrame", path: Path, separator: str) -> None:
    """Refuse lines that end early, as those of a file that was cut off."""
    if not found.shape[1] or not found.iloc[:, -1].isna().any():
        return
    lines = _lines(path, separator)
    width = len(next(lines)[1])
    for number, line in lines:
        if len(line) < width:
            raise DataError(
                f"{path}, line {number}: expected {width} values, got {len(line)}: "
                f"{separator.join(line)[:60]!r}. Was the file cut off?"
            )


def _lines(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Lines that are rows of a table, the first with the names; each with where it begins, from 1.

    A row may go on in more lines, inside quotes; lines of blanks only are none.
    """
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        lines, begin = csv.reader(file, delimiter=separator), 1
        for line in lines:
            if line and (len(line) > 1 or line[0].strip(" \t")):
                yield begin, line
            begin = lines.line_num + 1


def _line(path: Path, separator: str, row: int) -> int:
    """Line of a file that a row of its table stands in, counted from 1."""
    return next(islice(_lines(path, separator), 1 + row, None))[0]


def _check_numbers(column: "pd.Series", where: str, path: Path, separator: str) -> None:
    """Refuse a column most of which are numbers, and some not; others may be text."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return
    numbers = pd.to_numeric(column, errors="coerce")
    wrong = np.flatnonzero(numbers.isna() & column.notna())
    if len(wrong) and len(wrong) <= len(column) / 2 and not column.isin([True, False]).all():
        value = str(column.iloc[wrong[0]])
        comma = " Numbers have a decimal point." if "," in value else ""
        raise DataError(
            f"{where}, line {_line(path, separator, wrong[0])}: expected a number, got {value!r} "
            f"({len(wrong)} such values). Write nothing where one is missing.{comma}"
        )
