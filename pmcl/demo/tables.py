"""Regression tables, real and simulated, and the data sets drawn from them."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

PREDICTORS = 5


@dataclass(frozen=True, eq=False)
class RegressionTable:
    """One regression table: five predictors and a response, unscaled.

    Parameters
    ----------
    name : str
        What the table is called here.
    predictors : tuple of str
        Names of the five predictors, in the order of the columns of `X`.
    response : str
        Name of the response.
    X : numpy.ndarray
        Predictors, ``(rows, 5)``, float64.
    y : numpy.ndarray
        Response, ``(rows,)``, float64.
    source : str
        Where the table comes from, in one line.

    Raises
    ------
    ValueError
        If a shape is wrong, or a value is missing or not finite.
    """

    name: str
    predictors: tuple[str, ...]
    response: str
    X: np.ndarray
    y: np.ndarray
    source: str

    def __post_init__(self) -> None:
        """Check the shapes and that every value is finite."""
        if len(self.predictors) != PREDICTORS:
            raise ValueError(
                f"{self.name}: expected {PREDICTORS} predictors, got {len(self.predictors)}"
            )
        expected = (len(self.y), PREDICTORS)
        if self.y.ndim != 1 or self.X.shape != expected:
            raise ValueError(
                f"{self.name}: expected X of shape {expected} and y of one dimension, "
                f"got {self.X.shape} and {self.y.shape}"
            )
        values = np.column_stack([self.X, self.y])
        for column, bad in zip(
            (*self.predictors, self.response), ~np.isfinite(values).all(axis=0), strict=True
        ):
            if bad:
                raise ValueError(
                    f"{self.name}, column {column}: expected finite numbers, got NaN or infinity; "
                    "drop those rows"
                )


def table_of(
    name: str, frame: pd.DataFrame, predictors: tuple[str, ...], response: str, source: str
) -> RegressionTable:
    """Take five predictors and a response from a data frame."""
    missing = [column for column in (*predictors, response) if column not in frame]
    if missing:
        raise ValueError(f"{name}: expected columns {missing}, got {list(frame.columns)}")
    return RegressionTable(
        name=name,
        predictors=predictors,
        response=response,
        X=frame[list(predictors)].astype(np.float64).to_numpy(),
        y=frame[response].astype(np.float64).to_numpy(),
        source=source,
    )


def bundled_tables() -> dict[str, RegressionTable]:
    """Give seven tables that scikit-learn and statsmodels carry: nothing is downloaded.

    Returns
    -------
    dict of str to RegressionTable
        They differ in character: ``diabetes`` (a clinical measure, half of it explained),
        ``wine`` (three cultivars in 178 rows), ``star98`` (percentages of Californian school
        districts), ``macrodata`` (a quarterly time series with nearly collinear predictors),
        ``randhie`` (skewed counts with a heavy tail, hardly explained), ``anes96`` (ordinal
        answers of a survey) and ``modechoice`` (a designed experiment with little noise).

    Raises
    ------
    ImportError
        If statsmodels is not installed.
    """
    from sklearn.datasets import load_diabetes, load_wine

    try:
        from statsmodels import datasets as bundled
    except ImportError as error:
        raise ImportError(
            "the bundled tables need statsmodels, which is not installed: pip install pmcl[demo]"
        ) from error

    star98 = bundled.star98.load_pandas().data
    # the data set's own binomial response, as a percentage
    above = 100 * star98["NABOVE"] / (star98["NABOVE"] + star98["NBELOW"])
    tables = (
        table_of(
            "diabetes",
            load_diabetes(as_frame=True, scaled=False).frame,
            ("bmi", "bp", "s1", "s5", "age"),
            "target",
            "scikit-learn load_diabetes(scaled=False): Efron et al. 2004",
        ),
        table_of(
            "wine",
            load_wine(as_frame=True).frame,
            ("alcohol", "malic_acid", "ash", "alcalinity_of_ash", "magnesium"),
            "proline",
            "scikit-learn load_wine: UCI 109",
        ),
        table_of(
            "star98",
            star98.assign(PCTABOVE=above),
            ("LOWINC", "PERASIAN", "PERBLACK", "PERHISP", "PCTAF"),
            "PCTABOVE",
            "statsmodels star98: Gill 2000, California's STAR testing of 1998",
        ),
        table_of(
            "macrodata",
            bundled.macrodata.load_pandas().data,
            ("realcons", "realinv", "realgovt", "m1", "tbilrate"),
            "unemp",
            "statsmodels macrodata: FRED, United States, 1959 to 2009 by quarter",
        ),
        table_of(
            "randhie",
            bundled.randhie.load_pandas().data,
            ("lncoins", "lpi", "fmde", "physlm", "disea"),
            "mdvis",
            "statsmodels randhie: RAND Health Insurance Experiment",
        ),
        table_of(
            "anes96",
            bundled.anes96.load_pandas().data,
            ("selfLR", "ClinLR", "DoleLR", "age", "income"),
            "PID",
            "statsmodels anes96: American National Election Study 1996",
        ),
        table_of(
            "modechoice",
            bundled.modechoice.load_pandas().data,
            ("ttme", "invc", "invt", "hinc", "psize"),
            "gc",
            "statsmodels modechoice: Greene and Hensher 1997",
        ),
    )
    return {table.name: table for table in tables}


def draw_datasets(
    table: RegressionTable, *, datasets: int = 10, rows: int = 100, random_seed: int
) -> xr.Dataset:
    """Draw data sets from a table, rows with replacement.

    Every column is first standardised over the whole table to mean 0 and standard deviation 1,
    so that one data set's columns are so only about.

    Parameters
    ----------
    table : RegressionTable
        What is drawn from.
    datasets : int
        Number of data sets.
    rows : int
        Number of rows in each.
    random_seed : int
        Seed of the draws: the same seed gives the same data sets.

    Returns
    -------
    xarray.Dataset
        ``X`` ``(dataset, obs, predictor)`` and ``y`` ``(dataset, obs)``, float64; the coordinate
        ``dataset`` holds ``"<name> 0"``, ``"<name> 1"``, ...; the attributes name the columns.

    Raises
    ------
    ValueError
        If `datasets` or `rows` is less than one, or a column is constant.
    """
    _check_counts(datasets=datasets, rows=rows)
    values = np.column_stack([table.X, table.y])
    columns = (*table.predictors, table.response)
    for column, spread in zip(columns, np.ptp(values, axis=0), strict=True):
        if spread == 0:
            raise ValueError(
                f"{table.name}, column {column}: expected values that vary, got a constant; "
                "choose another column"
            )
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    drawn = np.random.default_rng(random_seed).integers(len(values), size=(datasets, rows))
    data = _labelled(table.name, values[drawn, :-1], values[drawn, -1])
    return data.assign_attrs(
        predictors=list(table.predictors), response=table.response, source=table.source
    )


def simulated_datasets(
    *, datasets: int, rows: int, random_seed: int
) -> tuple[xr.Dataset, xr.Dataset]:
    """Simulate data sets from the prior of the paper's first experiment.

    ``alpha`` and ``beta`` are standard normal, ``sigma`` is half-normal with scale 1, ``X`` is
    standard normal and ``y`` normal around ``alpha + X @ beta`` with standard deviation
    ``sigma``.

    Parameters
    ----------
    datasets : int
        Number of data sets.
    rows : int
        Number of rows in each.
    random_seed : int
        Seed of the draws: the same seed gives the same data sets.

    Returns
    -------
    data : xarray.Dataset
        ``X`` ``(dataset, obs, predictor)`` and ``y`` ``(dataset, obs)``, float64; the coordinate
        ``dataset`` holds ``"simulated 0"``, ``"simulated 1"``, ...
    parameters : xarray.Dataset
        The true ``alpha`` ``(dataset,)``, ``beta`` ``(dataset, predictor)`` and ``sigma``
        ``(dataset,)``.

    Raises
    ------
    ValueError
        If `datasets` or `rows` is less than one.
    """
    _check_counts(datasets=datasets, rows=rows)
    rng = np.random.default_rng(random_seed)
    alpha = rng.standard_normal(datasets)
    beta = rng.standard_normal((datasets, PREDICTORS))
    sigma = np.abs(rng.standard_normal(datasets))
    X = rng.standard_normal((datasets, rows, PREDICTORS))
    noise = rng.standard_normal((datasets, rows))
    y = alpha[:, None] + np.einsum("dnp,dp->dn", X, beta) + sigma[:, None] * noise
    data = _labelled("simulated", X, y)
    parameters = xr.Dataset(
        {
            "alpha": ("dataset", alpha),
            "beta": (("dataset", "predictor"), beta),
            "sigma": ("dataset", sigma),
        },
        coords={"dataset": data["dataset"]},
    )
    return data, parameters


def _check_counts(*, datasets: int, rows: int) -> None:
    """Refuse to draw nothing."""
    for name, value in (("datasets", datasets), ("rows", rows)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")


def _labelled(name: str, X: np.ndarray, y: np.ndarray) -> xr.Dataset:
    """Label data sets that were drawn: X ``(datasets, rows, 5)`` and y ``(datasets, rows)``."""
    return xr.Dataset(
        {"X": (("dataset", "obs", "predictor"), X), "y": (("dataset", "obs"), y)},
        coords={"dataset": [f"{name} {i}" for i in range(len(y))]},
    )
