"""The nine tables of the paper's first experiment: from files, or downloads."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path

import pandas as pd

from pmcl.demo.tables import RegressionTable, table_of


@dataclass(frozen=True)
class PaperSource:
    """How to get one table of the paper.

    Parameters
    ----------
    file : str
        Name of its file without suffix.
    origin : str
        Who made it, and where it is to be had, in a line.
    predictors : tuple of str
        Names of the five predictors.
    response : str
        Name of the response.
    rows : int
        Number of complete rows that a download gives.
    download : callable
        Gives a data frame that has at least these columns, named as here.
    """

    file: str
    origin: str
    predictors: tuple[str, ...]
    response: str
    rows: int
    download: Callable[[], pd.DataFrame]


def _openml(data_id: int, columns: Mapping[str, str]) -> pd.DataFrame:
    """Download a table of OpenML; `columns` gives its names for ours where the two differ."""
    from sklearn.datasets import fetch_openml

    frame = fetch_openml(data_id=data_id, as_frame=True).frame
    return frame.rename(columns={theirs: ours for ours, theirs in columns.items()})


def _california() -> pd.DataFrame:
    from sklearn.datasets import fetch_california_housing

    return fetch_california_housing(as_frame=True).frame


def _diabetes() -> pd.DataFrame:
    from sklearn.datasets import load_diabetes

    return load_diabetes(as_frame=True, scaled=False).frame


PAPER_SOURCES = {
    "boston": PaperSource(
        "boston",
        "Harrison and Rubinfeld 1978, OpenML boston",
        ("CRIM", "ZN", "RM", "AGE", "DIS"),
        "MEDV",
        506,
        partial(_openml, 531, {}),
    ),
    "auto_mpg": PaperSource(
        "auto_mpg",
        "UCI 9, OpenML autoMpg",
        ("cylinders", "displacement", "horsepower", "weight", "acceleration"),
        "mpg",
        392,
        partial(_openml, 196, {"mpg": "class"}),
    ),
    "california": PaperSource(
        "california",
        "Pace and Barry 1997, scikit-learn",
        ("MedInc", "HouseAge", "AveRooms", "AveOccup", "Population"),
        "MedHouseVal",
        20640,
        _california,
    ),
    "diabetes": PaperSource(
        "diabetes",
        "Efron et al. 2004, scikit-learn",
        ("bmi", "bp", "s1", "s5", "age"),
        "target",
        442,
        _diabetes,
    ),
    "energy": PaperSource(
        "energy_efficiency",
        "UCI 242, OpenML energy_efficiency",
        ("X1", "X3", "X6", "X7", "X8"),
        "Y1",
        768,
        partial(
            _openml,
            44960,
            {
                "X1": "relative_compactness",
                "X3": "wall_area",
                "X6": "orientation",
                "X7": "glazing_area",
                "X8": "glazing_area_distribution",
                "Y1": "heating_load",
            },
        ),
    ),
    "bike": PaperSource(
        "bike_sharing",
        "UCI 275 (hourly), OpenML Bike_Sharing_Demand",
        ("mnth", "temp", "hum", "windspeed", "weekday"),
        "cnt",
        17379,
        partial(_openml, 42712, {"mnth": "month", "hum": "humidity", "cnt": "count"}),
    ),
    "concrete": PaperSource(
        "concrete",
        "UCI 165, OpenML concrete_compressive_strength",
        ("Cement", "Water", "Superplasticizer", "Coarse Aggregate", "Fly Ash"),
        "strength",
        1030,
        partial(
            _openml,
            44959,
            {
                "Cement": "cement",
                "Water": "water",
                "Superplasticizer": "superplasticizer",
                "Coarse Aggregate": "coarse_aggregate",
                "Fly Ash": "fly_ash",
            },
        ),
    ),
    "liver": PaperSource(
        "liver",
        "UCI 60 (BUPA), OpenML liver-disorders",
        ("mcv", "alkphos", "sgpt", "sgot", "gammagt"),
        "drinks",
        345,
        partial(_openml, 8, {}),
    ),
    "superconductivity": PaperSource(
        "superconductivity",
        "UCI 464, OpenML superconductivity",
        (
            "mean_atomic_mass",
            "mean_Valence",
            "mean_atomic_radius",
            "mean_ElectronAffinity",
            "mean_FusionHeat",
        ),
        "critical_temp",
        21263,
        partial(_openml, 44964, {}),
    ),
}


def read_frame(name: str, source: PaperSource, folder: Path) -> pd.DataFrame:
    """Read one table of the paper from ``<file>.csv`` or ``<file>.csv.gz`` in a folder.

    Parameters
    ----------
    name : str
        What the table is called here.
    source : PaperSource
        Its file and columns.
    folder : pathlib.Path
        The folder of the files.

    Returns
    -------
    pandas.DataFrame
        All columns of the file.

    Raises
    ------
    FileNotFoundError
        If neither file is there.
    """
    paths = [folder / f"{source.file}{suffix}" for suffix in (".csv", ".csv.gz")]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"{name}: expected {paths[0].name} or {paths[1].name} in {folder}, found neither; "
            "set PMCL_DATA to the folder that holds regression/, or unset it to download"
        )
    return pd.read_csv(path)


def download_frame(name: str, source: PaperSource) -> pd.DataFrame:
    """Get one table of the paper through scikit-learn, which keeps it in its own cache.

    Parameters
    ----------
    name : str
        What the table is called here.
    source : PaperSource
        Its columns, its number of rows and how to download it.

    Returns
    -------
    pandas.DataFrame
        The predictors and the response, complete rows only.

    Raises
    ------
    RuntimeError
        If the download fails, or gives other columns or another number of rows.
    """
    remedy = f"set PMCL_DATA to a folder with regression/{source.file}.csv"
    try:
        frame = source.download()
    except (OSError, HTTPException, ValueError) as error:
        raise RuntimeError(f"{name}: the download failed ({error}); {remedy}") from error
    columns = [*source.predictors, source.response]
    if missing := [column for column in columns if column not in frame]:
        raise RuntimeError(
            f"{name}: expected columns {missing} of the download, "
            f"got {list(frame.columns)}; {remedy}"
        )
    # OpenML's Auto MPG has six rows without horsepower
    frame = frame[columns].dropna()
    if len(frame) != source.rows:
        raise RuntimeError(
            f"{name}: expected {source.rows} complete rows of the download, got {len(frame)}; "
            f"{remedy}"
        )
    return frame


def paper_tables(folder: Path | None = None) -> dict[str, RegressionTable]:
    """Give the nine regression tables of the paper, in its order.

    Parameters
    ----------
    folder : pathlib.Path, optional
        The folder that holds ``regression/``, with one ``.csv`` or ``.csv.gz`` a table. By
        default the one that the environment variable ``PMCL_DATA`` names; where neither is given,
        scikit-learn downloads the tables, once, into its own cache.

    Returns
    -------
    dict of str to RegressionTable
        ``boston``, ``auto_mpg``, ``california``, ``diabetes``, ``energy``, ``bike``,
        ``concrete``, ``liver`` and ``superconductivity``. The two ways differ in the units of
        ``bike``'s temperature and wind speed, and a folder may hold only some of the rows.

    Raises
    ------
    FileNotFoundError
        If the folder lacks a table.
    ValueError
        If a file lacks a column, or holds a value that is missing or not finite.
    RuntimeError
        If a download fails or does not give the table that was expected.
    """
    if folder is None and (named := os.environ.get("PMCL_DATA")):
        folder = Path(named)
    tables = {}
    for name, source in PAPER_SOURCES.items():
        if folder is None:
            frame = download_frame(name, source)
        else:
            frame = read_frame(name, source, Path(folder) / "regression")
        tables[name] = table_of(name, frame, source.predictors, source.response, source.origin)
    return tables
