"""Files as somebody has them: what the command line reads of them, and what it says."""

import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from situation import Read, Refused


class File(NamedTuple):
    """Name and content of a file: text, or what writes it."""

    name: str
    content: object
    outcome: Read | Refused

    def written(self, folder: Path) -> Path:
        path = folder / self.name
        if isinstance(self.content, bytes):
            path.write_bytes(self.content)
        elif isinstance(self.content, str):
            path.write_text(self.content)
        elif isinstance(self.content, pd.DataFrame):
            self.content.to_parquet(path)
        elif self.name.endswith(".nc"):
            self.content.to_netcdf(path)
        else:
            self.content.to_zarr(path, consolidated=False)
        return path


def table(*lines: str, head: str = "dataset,x,y") -> str:
    return "\n".join([head, *lines, ""])


BOTH = Read({"x": [[1, 2, 3, 4]], "y": [[0.5, 1, 1.5, 2]]}, ("u",))
GAP = Read({"x": [[1, 2, 3, 4]], "y": [[0.5, 1, 1.5, np.nan]]}, ("u",))
GOOD = ("u,1,0.5", "u,2,1", "u,3,1.5", "u,4,2")
FRAME = pd.DataFrame({"dataset": "u", "x": [1, 2, 3, 4], "y": [0.5, 1, 1.5, 2]})
ARRAYS = xr.Dataset(
    {"y": (("dataset", "obs"), [[0.5, 1, 1.5, 2]])},
    coords={"dataset": ["u"], "x": (("dataset", "obs"), [[1.0, 2, 3, 4]])},
)


def packed() -> xr.Dataset:
    """Whole numbers with a scale and a mark, which opening the file decodes."""
    found = ARRAYS.reset_coords("x")
    found["y"] = (("dataset", "obs"), [[0.5, np.nan, 1.5, 2]])
    found["y"].encoding = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -99}
    return found


FILES = {
    "commas": File("d.csv", table(*GOOD), BOTH),
    "tabs": File("d.tsv", table(*GOOD).replace(",", "\t"), BOTH),
    "with a byte order mark": File("d.csv", ("\ufeff" + table(*GOOD)).encode(), BOTH),
    "with line ends of Windows": File("d.csv", table(*GOOD).replace("\n", "\r\n").encode(), BOTH),
    "more columns than are needed": File(
        "d.csv", table(*(f"{line},k" for line in GOOD), head="dataset,x,y,note"), BOTH
    ),
    "parquet": File("d.parquet", FRAME, BOTH),
    "parquet, names of numbers": File(
        "d.parquet", FRAME.assign(dataset=7), Read(BOTH.values, ("7",))
    ),
    "netCDF with a covariate as coordinate": File("d.nc", ARRAYS, BOTH),
    "netCDF that is packed": File("d.nc", packed(), Read({"y": [[0.5, np.nan, 1.5, 2]]}, ("u",))),
    "netCDF with ArviZ's groups": File(
        "d.nc",
        xr.DataTree.from_dict(
            {
                "observed_data": ARRAYS[["y"]].drop_vars("x"),
                "constant_data": ARRAYS[["x"]].reset_coords("x"),
            }
        ),
        BOTH,
    ),
    "zarr": File("d.zarr", ARRAYS, BOTH),
    "names that look like numbers": File(
        "d.csv",
        table(*(f"{n},1,2" for n in ("007", "7", "1.0", "1.00", "1e3", "NA", "true"))),
        Read({}, ("007", "7", "1.0", "1.00", "1e3", "NA", "true")),
    ),
    "nothing where a value is missing": File(
        "d.csv", table("u,1,0.5", "u,2,", "u,3,NA"), Read({"y": [[0.5, np.nan, np.nan]]}, ("u",))
    ),
    "semicolons": File(
        "d.csv", table(*GOOD).replace(",", ";"), Refused("separated by ','.*first line with ';'")
    ),
    "commas in a .tsv": File("d.tsv", table(*GOOD), Refused(r"separated by '\\t'.*with ','")),
    "decimal commas": File(
        "d.csv",
        table('u,1,"0,5"', "u,2,1", "u,3,2", "u,4,4"),
        Refused(r"column 'y', line 2: expected a number, got '0,5' \(1 such.*decimal point"),
    ),
    "a word among numbers": File(
        "d.csv",
        table(*GOOD[:3], "u,unknown,2"),
        Refused("column 'x', line 5: expected a number, got 'unknown'"),
    ),
    "words for numbers": File(
        "d.csv", table("u,a,1", "u,b,2"), Refused("'x' of dataset 'u': expected numbers")
    ),
    "a word after empty lines": File(
        "d.csv",
        "dataset,x,y\n\nu,1,1\n\nu,2,1\nu,a,1\n",
        Refused("column 'x', line 6: expected a number, got 'a'"),
    ),
    "a word after a row of NA and one of two lines": File(
        "d.csv",
        'x,dataset,y\nNA,u,1\n \n"1",u,2\n2,"u\nv",1\n3,u,1\na,u,1\n',
        Refused("column 'x', line 8: expected a number, got 'a'"),
    ),
    "compressed, a name in capitals": File(
        "D.CSV.GZ", gzip.compress(table(*GOOD[:3], "u,4,").encode()), GAP
    ),
    "blanks between lines, a gap at the end": File("d.csv", table(*GOOD[:3], "   ", "u,4,"), GAP),
    "flags with a gap": File(
        "d.csv", table("u,1,TRUE", "u,2,", "u,3,FALSE"), Read({"y": [[1, np.nan, 0]]}, ("u",))
    ),
    "a comma at the end of lines": File("d.csv", table(*(f"{line}," for line in GOOD)), BOTH),
    "a last line that ends early": File(
        "d.csv",
        table(*GOOD[:3], "u,4"),
        Refused("line 5: expected 3 values, got 2: 'u,4'.*cut off"),
    ),
    "other than UTF-8": File(
        "d.csv", table(*GOOD).encode("utf-16"), Refused("expected text in UTF-8")
    ),
    "a name in capitals": File("D.CSV", table(*GOOD), BOTH),
    "parquet, datasets in the index": File("d.parquet", FRAME.set_index("dataset"), BOTH),
    "netCDF, names of bytes": File("d.nc", ARRAYS.assign_coords(dataset=np.array([b"u"])), BOTH),
    "longer lines": File(
        "d.csv", table("u,1,2,3", "u,1,2,3"), Refused("lines of 3 values, as the first has")
    ),
    "one longer line": File("d.csv", table(*GOOD, "u,1,2,3"), Refused("could not be read.*line 6")),
    "a column twice": File(
        "d.csv",
        table(*(f"{line},9" for line in GOOD), head="dataset,x,y,y"),
        Refused("columns .'y'. come more than once"),
    ),
    "no name in a row": File("d.csv", table(*GOOD, ",5,5"), Refused("1 rows have none")),
    "no column of a covariate": File(
        "d.csv", table("u,1", head="dataset,y"), Refused("'x'.*got .'dataset', 'y'")
    ),
    "no column of datasets": File(
        "d.csv", table("ann,1,2", "bob,2,3", head="who,x,y"), Refused("'who', 'x', 'y'.; `--data")
    ),
    "a column with a blank": File(
        "d.csv", table(*GOOD, head="dataset,x, y"), Refused("got .'dataset', 'x', ' y'")
    ),
    "a mark of what is missing, in a count": File(
        "d.csv", table("u,1,inf"), Refused("'y' of dataset 'u': expected finite values")
    ),
    "empty": File("d.csv", "", Refused("could not be read")),
    "only names of columns": File("d.csv", "dataset,x,y\n", Refused("at least one dataset")),
    "not what its name says": File("d.nc", b"nonsense", Refused("could not be read")),
    "of another kind": File("d.xlsx", b"nonsense", Refused("expected one of .csv")),
}
