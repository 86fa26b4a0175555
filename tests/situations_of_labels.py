"""Labels, names of datasets, masks, coordinates, and the forms that data come in."""

from functools import partial

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from situation import Read, Refused, Situation, Warned, reals

import pmcl

DAYS = pd.date_range("2020-01-01", periods=3)
MATRIX = np.arange(12.0).reshape(4, 3)
Y = np.array([0.5, 1.0, 1.5, 2.0])
X = np.array([1.0, 2.0, 3.0, 4.0])


class Columns:
    """A model with a labelled dim of parameters; one for each set of labels."""

    def __init__(self, labels: object, of_parameters: bool = True) -> None:
        self.labels, self.of_parameters = labels, of_parameters

    def __call__(self) -> pm.Model:
        with pm.Model(coords={"obs": range(10, 14), "p": self.labels}) as made:
            X = pm.Data("X", np.zeros((4, 3)), dims=("obs", "p"))
            b = pm.Normal("b", dims="p") if self.of_parameters else pm.Normal("b", shape=3)
            pm.Normal("y", X @ b, 1, **reals())
        return made


TEXT, DATES = Columns(["dose", "age", "bmi"]), Columns(DAYS)
ZONED = Columns(DAYS.tz_localize("UTC"))
PERIODS = Columns(pd.period_range("2020-01", periods=3, freq="M"))
NUMBERS, NONE = Columns([1, 2, 3]), Columns(range(3))
PADDED, TWICE = Columns(["01", "02", "03"]), Columns(["Lincoln", "Adams", "Lincoln"])
FLAGS = Columns([True, False, "unknown"])
SHAPED = Columns(["dose", "age", "bmi"], of_parameters=False)


def array(labels: object) -> dict[str, object]:
    return {"X": xr.DataArray(MATRIX, dims=("obs", "p"), coords={"p": labels}), "y": Y}


def frame(labels: object) -> dict[str, object]:
    return {"X": pd.DataFrame(MATRIX, columns=labels), "y": Y}


STRAIGHT = Read({"X": [MATRIX]})
BACK = Read({"X": [MATRIX[:, ::-1]]})
DIFFER = Refused(r"'X': labels of dim 'p' are .*, the model's are .*: they differ\.")
CASE_OR_BLANKS = Refused("'p' are .* the model's are .*: they differ in case or blanks")

# model, labels that come, what comes of it
OF_COLUMNS = {
    "the same": (TEXT, ["dose", "age", "bmi"], STRAIGHT),
    "in another order": (TEXT, ["bmi", "age", "dose"], BACK),
    "of another case": (TEXT, ["BMI", "Age", "Dose"], CASE_OR_BLANKS),
    "with a blank": (TEXT, ["bmi", " age", "dose"], CASE_OR_BLANKS),
    "others": (TEXT, ["bmi", "weight", "dose"], DIFFER),
    "twice": (TEXT, ["bmi", "bmi", "dose"], Refused("'bmi'. came more than once")),
    "numbers of positions": (TEXT, [0, 1, 2], STRAIGHT),
    "dates backwards": (DATES, DAYS[::-1], BACK),
    "dates of Python": (DATES, [d.date() for d in DAYS[::-1]], BACK),
    "dates as text": (DATES, [str(d.date()) for d in DAYS[::-1]], DIFFER),
    "other dates": (DATES, DAYS + pd.Timedelta(days=1), DIFFER),
    "dates with a zone for none": (DATES, DAYS.tz_localize("UTC")[::-1], DIFFER),
    "the same instants in another zone": (
        ZONED,
        DAYS.tz_localize("UTC").tz_convert("Asia/Tokyo")[::-1],
        BACK,
    ),
    "the same clock in another zone": (ZONED, DAYS.tz_localize("Asia/Tokyo")[::-1], DIFFER),
    "periods": (PERIODS, pd.period_range("2020-01", periods=3, freq="M")[::-1], BACK),
    "other periods": (PERIODS, pd.period_range("2021-01", periods=3, freq="M"), DIFFER),
    "categories": (TEXT, pd.CategoricalIndex(["bmi", "age", "dose"]), BACK),
    "whole numbers as floats": (NUMBERS, [3.0, 2.0, 1.0], BACK),
    "numbers for text with zeros": (PADDED, [3, 2, 1], DIFFER),
    "a model without labels": (NONE, ["c", "b", "a"], STRAIGHT),
    "a model's positions, in another order": (NONE, [2, 1, 0], BACK),
    "twice on both sides": (TWICE, ["Lincoln", "Adams", "Lincoln"], STRAIGHT),
    "twice on both sides, in another order": (
        TWICE,
        ["Adams", "Lincoln", "Lincoln"],
        Refused("'Lincoln'. came more than once"),
    ),
    "flags": (FLAGS, ["unknown", False, True], BACK),
}
CASES: dict[str, Situation] = {
    f"labels, {form.__name__}: {name}": Situation(model, partial(form, labels), outcome)
    for form in (array, frame)
    for name, (model, labels, outcome) in OF_COLUMNS.items()
}


def line() -> pm.Model:
    with pm.Model(coords={"obs": range(10, 14)}) as made:
        x = pm.Data("x", np.zeros(4), dims="obs")
        pm.Normal("y", pm.Normal("b") * x, 1, **reals())
    return made


def panel() -> pm.Model:
    """Two dims that are no parameters'; the first has the rows."""
    with pm.Model(coords={"obs": range(4), "year": [2001, 2002, 2003]}) as made:
        pm.Normal("y", pm.Normal("a"), 1, observed=np.zeros((4, 3)), dims=("obs", "year"))
    return made


def named(name: str, kind: str = "free") -> pm.Model:
    coords = {name: range(4)} if kind == "dim" else {}
    with pm.Model(coords=coords) as made:
        a = pm.Normal(name if kind == "free" else "a", dims=name if kind == "dim" else None)
        pm.Deterministic(name if kind == "deterministic" else "twice", 2 * a)
        x = pm.Data(name if kind == "data" else "x", np.ones(4))
        pm.Normal(name if kind == "observed" else "y", a * x, 1, observed=np.ones(4))
    return made


def nameless() -> pm.Model:
    with pm.Model() as made:
        x = pm.Data("x", X)
        pm.Normal("y", pm.Normal("b") * x, 1, observed=Y)
    return made


def of_groups(step: float = 0.0) -> pm.Model:
    """Data of the groups: placeholders, or a constant that the model has."""
    with pm.Model(coords={"obs": range(4), "g": range(2)}) as made:
        z = pm.Data("z", step * np.arange(2), dims="g")
        b = pm.Normal("b", z, 1, dims="g")
        pm.Normal("y", b[np.array([0, 0, 1, 1])], 1, **reals())
    return made


def counted(labels: list[object]) -> pm.Model:
    """Rows by the place of their group, of which something is known by its label."""
    with pm.Model(coords={"obs": range(4), "g": labels}) as made:
        x, z = pm.Data("x", np.zeros(4, int), dims="obs"), pm.Data("z", np.zeros(3), dims="g")
        b = z + 2 * pm.Normal("b", dims="g")
        pm.Normal("y", b[x], 1, **reals())
    return made


COUNTED, COUNTED_FROM_1 = (partial(counted, labels) for labels in (list("abc"), [1, 2, 3]))


def groups_of_rows(labels: list[object]) -> pm.Model:
    with pm.Model(coords={"obs": range(4), "g": labels}) as made:
        x = pm.Data("x", np.zeros(4, int), dims="obs")
        pm.Normal("y", pm.Normal("b", dims="g")[x], 1, **reals())
    return made


def beside_a_reference() -> pm.Model:
    with pm.Model(coords={"obs": range(4), "g": list("bc")}) as made:
        x = pm.Data("x", np.zeros(4, int), dims="obs")
        pm.Normal("y", pt.concatenate([pt.zeros(1), pm.Normal("b", dims="g")])[x], 1, **reals())
    return made


def by_group(labels: list[object], x: list[int]) -> dict[str, object]:
    return {"x": x, "y": Y, "z": pd.Series([0.1, 0.2, 0.3], index=labels)}


def without_use() -> pm.Model:
    with pm.Model(coords={"obs": range(4)}) as made:
        pm.Data("x", np.zeros(4), dims="obs")
        pm.Normal("y", pm.Normal("b") * np.ones(4), 1, **reals())
    return made


def only_counted() -> pm.Model:
    """Of the covariate only the length counts: the values beside it are an array."""
    with pm.Model() as made:
        pm.Data("x", np.zeros(4), dims="match")
        pm.Normal("y", pm.Normal("b") * np.ones(4), 1, observed=np.zeros(4), dims="match")
    return made


FOUR_DAYS = pd.date_range("2020-01-01", periods=4)
ROWS = ["a", "b", "c", "d"]


def rows(x_labels: object, y_labels: object) -> dict[str, object]:
    return {
        "x": xr.DataArray(X, dims="obs", coords={"obs": x_labels}),
        "y": xr.DataArray(Y, dims="obs", coords={"obs": y_labels}),
    }


def series(x_labels: object, y_labels: object) -> dict[str, object]:
    return {"x": pd.Series(X, index=x_labels), "y": pd.Series(Y, index=y_labels)}


def datasets(x_names: object, y_names: object) -> dict[str, object]:
    return {
        "x": xr.DataArray([X, X + 1], dims=("dataset", "obs"), coords={"dataset": x_names}),
        "y": xr.DataArray([Y, Y + 1], dims=("dataset", "obs"), coords={"dataset": y_names}),
    }


def years(labels: object) -> xr.Dataset:
    return xr.Dataset({"y": (("obs", "year"), MATRIX)}, coords={"year": labels})


def masked(*values: float) -> np.ma.MaskedArray:
    return np.ma.masked_equal(values, -999.0)


GAP = masked(0.5, -999.0, 1.5, 2.0)
NAN = [0.5, np.nan, 1.5, 2.0]
UNLIKE = Refused("'y': labels of 'obs' are .*, those of 'x' are .*: they differ. Rows that belong")
RESERVED = partial(Refused, kind=pmcl.UnsupportedModelError)


def schools() -> pm.Model:
    """Rows are elements of a dim of parameters: their labels are the model's."""
    with pm.Model(coords={"school": ["A", "B", "C", "D"]}) as made:
        theta = pm.Normal("theta", dims="school")
        se = pm.Data("x", np.ones(4), dims="school")
        pm.Normal("y", theta, se, observed=np.zeros(4), dims="school")
    return made


def of_formula() -> pm.Model:
    """Data are arrays of the model's own, and parameters are called like columns."""
    with pm.Model(coords={"obs": range(4)}) as made:
        own = pm.Normal("1|who", shape=2)[np.array([0, 1, 0, 1])]
        slope = pm.Normal("b") + pm.Normal("bs(z, df=1)")
        pm.Normal("y", own + slope * X, 1, **reals())
    return made


def table(**columns: object) -> pd.DataFrame:
    return pd.DataFrame({"dataset": "u", "x": X, "y": Y, **columns})


def grouped(groups: list[object]) -> object:
    return pd.DataFrame({"g": groups, "x": X, "y": Y}).groupby("g")


def by_cast() -> pm.Model:
    """An index that came as numbers of any kind, cut to integers in the model."""
    with pm.Model(coords={"obs": range(4), "g": range(3)}) as made:
        x = pm.Data("x", np.zeros(4), dims="obs")
        pm.Normal("y", pm.Normal("b", dims="g")[x.astype("int64")], 1, **reals())
    return made


def by_bins() -> pm.Model:
    with pm.Model(coords={"obs": range(4), "g": range(3)}) as made:
        x = pm.Data("x", np.zeros(4), dims="obs")
        pm.Normal("y", pm.Normal("b", dims="g")[(x / 10).astype("int64")], 1, **reals())
    return made


DATED = Read({"x": [[2, 0, 1, 0]], "z": [[0.3, 0.2, 0.1]]})
CASES |= {
    "index: fractions that the model cuts off": Situation(
        by_cast, {"x": [0, 1.5, 2, 1], "y": Y}, Refused("'x'.*indexes 'b'.*whole numbers, got 1.5")
    ),
    "index: whole numbers as floats": Situation(
        by_cast, {"x": [0, 1.0, 2, 1], "y": Y}, Read({"x": [[0, 1, 2, 1]]})
    ),
    "index: numbers from 1, as floats": Situation(
        by_cast, {"x": [1.0, 2, 3, 1], "y": Y}, Refused("'x'.*Numbers counted from 1")
    ),
    "index: groups in another order than the model's": Situation(
        COUNTED,
        partial(by_group, list("cab"), [0, 1, 2, 1]),
        Refused("'z': labels along 'g' are .*'x' counts along it"),
    ),
    "index: groups in the model's order": Situation(
        COUNTED, partial(by_group, list("abc"), [0, 1, 2, 1]), Read({"z": [[0.1, 0.2, 0.3]]})
    ),
    "index: labels": Situation(
        COUNTED, partial(by_group, list("cab"), list("caba")), Read({"x": [[2, 0, 1, 0]]})
    ),
    "index: labels in a column of a table": Situation(
        partial(groups_of_rows, list("abc")),
        table(x=pd.Categorical(list("cabb"), categories=list("zbca"))),
        Read({"x": [[2, 0, 1, 1]]}),
    ),
    "index: dates": Situation(
        partial(counted, DAYS), partial(by_group, DAYS[::-1], DAYS[[2, 0, 1, 0]]), DATED
    ),
    "index: labels of a part of what is indexed": Situation(
        beside_a_reference, {"x": list("bcbb"), "y": Y}, Refused("'x'.*expected numbers")
    ),
    "index: labels that there are not": Situation(
        COUNTED,
        partial(by_group, list("abc"), list("caxA")),
        Refused("'x' of dataset '0': expected labels of 'g' ..'a', 'b', 'c'.., .*got .'x', 'A'"),
    ),
    "index: labels, one missing": Situation(
        COUNTED,
        partial(by_group, list("abc"), ["c", "a", None, "b"]),
        Refused("'x'.*labels of 'g'"),
    ),
    "index: labels as text where they are numbers": Situation(
        COUNTED_FROM_1, partial(by_group, [1, 2, 3], list("2332")), Read({"x": [[1, 2, 2, 1]]})
    ),
    "index: places that are labels, too": Situation(
        COUNTED_FROM_1,
        partial(by_group, [1, 2, 3], [1, 2, 2, 1]),
        Warned("'x': got .'1', '2'., which are places along 'g'.*1 is the group '2'"),
    ),
    "index: places that are no labels": Situation(
        COUNTED_FROM_1, partial(by_group, [1, 2, 3], [0, 1, 2, 1]), Read({"x": [[0, 1, 2, 1]]})
    ),
    "index: bins": Situation(by_bins, {"x": [5, 17, 28, 9], "y": Y}, Read({"x": [[5, 17, 28, 9]]})),
    "index: bins that there are not": Situation(
        by_bins, {"x": [5, 17, 30, 9], "y": Y}, Refused("0 to 2, got 0 to 3 .computed from x")
    ),
    "table: rows labelled in another order": Situation(
        schools,
        table(school=["D", "C", "B", "A"]),
        Read({"x": [X[::-1]], "y": [Y[::-1]]}),
    ),
    "table: rows labelled otherwise": Situation(
        schools, table(school=["a", "B", "C", "D"]), Refused("'school' of dataset 'u'.*case or bl")
    ),
    "table: rows without labels": Situation(schools, table(), Read({"x": [X], "y": [Y]})),
    "table: a column twice": Situation(
        line,
        pd.DataFrame([[1, 2, 3, "u"]] * 4, columns=["x", "y", "y", "dataset"]),
        Refused("columns .'y'. come more than once"),
    ),
    "table: no column of datasets": Situation(
        line, table().drop(columns="dataset"), Read({"y": [Y]}, ("0",))
    ),
    "table: a column of names that nobody reads": Situation(
        line,
        table(who=["ann", "ann", "bob", "bob"]).drop(columns="dataset"),
        Warned("one dataset of 4 rows. Do 'who' tell datasets apart"),
    ),
    "table: datasets in the index": Situation(
        line,
        table(dataset=["u", "v", "u", "v"], row=[0, 0, 1, 1]).set_index(["dataset", "row"]),
        Read({"y": [Y[::2], Y[1::2]]}, ("u", "v")),
    ),
    "table: columns of it, datasets in their index": Situation(
        line,
        dict(table(dataset=["u", "v", "u", "v"]).set_index("dataset")),
        Refused("'x': expected one dataset.*its rows have names of datasets.*Pass a table"),
    ),
    "table: as arrays, datasets in a coordinate": Situation(
        line,
        table(dataset=["u", "v", "u", "v"]).rename_axis("obs").to_xarray().set_coords("dataset"),
        Refused("'x': expected one dataset.*its rows have names of datasets"),
    ),
    "table: rows labelled by the index": Situation(
        schools,
        table().set_index(pd.Index(["D", "C", "B", "A"], name="school")),
        Read({"x": [X[::-1]], "y": [Y[::-1]]}),
    ),
    "table: several datasets under one name": Situation(
        line,
        {"all": table(dataset=["u", "v", "u", "v"])},
        Refused("Dataset 'all': expected one dataset under one name, got 2 in column 'dataset'"),
    ),
    "table: one column for a variable": Situation(
        line, {"x": pd.DataFrame({"x": X}), "y": table()[["y"]]}, Read({"x": [X], "y": [Y]})
    ),
    "array: rows first": Situation(
        line,
        {"x": np.stack([X, X], 1), "y": np.stack([Y, Y], 1)},
        Warned("4 datasets of 2 rows,.*own has 4 rows.*transpose"),
    ),
    "array: as many datasets as rows": Situation(
        line, {"x": [X] * 4, "y": [Y] * 4}, Read({"x": [X] * 4, "y": [Y] * 4})
    ),
    "array: column vectors": Situation(
        line, {"x": X[:, None], "y": Y[:, None]}, Warned("4 datasets of one row,.*ravel")
    ),
    "table: columns of arrays that the model has, called like parameters": Situation(
        of_formula,
        table(b=X, who=list("abab"), z=X, df=X).drop(columns="dataset"),
        Warned("columns 'b', 'who', 'z' are called like parameters, and are not read"),
    ),
    "table: a nameless row": Situation(
        line, table(dataset=["u", None, "u", "u"]), Refused("1 rows have none")
    ),
    "table: rows of datasets mixed": Situation(
        line,
        table(dataset=["u", "v", "u", "v"]),
        Read({"x": [X[::2], X[1::2]]}, ("u", "v")),
    ),
    "groupby": Situation(
        line, grouped(["u", "v", "u", "v"]), Read({"y": [Y[::2], Y[1::2]]}, ("u", "v"))
    ),
    "groupby: rows without a group": Situation(
        line, grouped(["u", None, "u", "v"]), Refused("1 rows have no group")
    ),
    "groupby: names that are one as text": Situation(
        line, partial(grouped, [1, "1", 1, "1"]), Refused("'1'. came more than once")
    ),
    "groupby: as a dictionary": Situation(
        line, partial(lambda g: dict([*grouped(g)]), ["u", "v", "u", "v"]), Read({}, ("u", "v"))
    ),
    "list: of labelled arrays": Situation(
        TEXT,
        {"X": [array(["bmi", "age", "dose"])["X"]], "y": [Y]},
        BACK,
    ),
    "list: of frames": Situation(
        TEXT,
        {"X": [frame(["bmi", "age", "dose"])["X"]] * 2, "y": [Y, Y]},
        Read({"X": [MATRIX[:, ::-1]] * 2}),
    ),
    "labels: a dim whose length is written in the model": Situation(
        SHAPED, partial(array, ["bmi", "age", "dose"]), BACK
    ),
    "labels: others along a dim that may be of the data": Situation(
        SHAPED, partial(array, ["BMI", "age", "dose"]), Warned("labels of dim 'p'.*by position")
    ),
    "labels: years of a panel": Situation(
        panel, partial(years, [2003, 2002, 2001]), Read({"y": [MATRIX[:, ::-1]]})
    ),
    "labels: other years of a panel": Situation(
        panel, partial(years, [2011, 2012, 2013]), Warned("'year' are .'2011'.*by position")
    ),
    "rows: labels unlike the model's": Situation(line, partial(rows, ROWS, ROWS), Read({"x": [X]})),
    "rows: the same in another order": Situation(
        line, partial(rows, ROWS, ROWS[::-1]), Read({"x": [X], "y": [Y[::-1]]})
    ),
    "rows: others": Situation(line, partial(rows, ROWS, ["b", "c", "d", "e"]), UNLIKE),
    "rows: dates a day apart": Situation(
        line,
        partial(
            rows, pd.date_range("2020-01-01", periods=4), pd.date_range("2020-01-02", periods=4)
        ),
        UNLIKE,
    ),
    "rows: some twice, in another order": Situation(
        line, partial(rows, ["a", "a", "b", "c"], ["a", "b", "a", "c"]), Refused("more than once")
    ),
    "rows: labels of one variable only": Situation(
        line,
        {"x": xr.DataArray(X, dims="obs", coords={"obs": ROWS}), "y": Y},
        Read({"x": [X], "y": [Y]}),
    ),
    "rows: Series of one index": Situation(
        line, partial(series, [7, 9, 3, 5], [7, 9, 3, 5]), Read({"x": [X], "y": [Y]})
    ),
    "rows: Series, one of them sorted": Situation(
        line, partial(series, [7, 9, 3, 5], [5, 3, 9, 7]), Read({"x": [X], "y": [Y[::-1]]})
    ),
    "rows: Series of different index": Situation(
        line, partial(series, [7, 9, 3, 5], [8, 9, 3, 5]), UNLIKE
    ),
    "rows: Series, a lag": Situation(
        line, partial(series, None, [1, 2, 3, 4]), Read({"x": [X], "y": [Y]})
    ),
    "rows: Series without an index of its own": Situation(
        line, partial(series, [7, 9, 3, 5], None), Read({"x": [X], "y": [Y]})
    ),
    "datasets: the same names in another order": Situation(
        line,
        partial(datasets, ["u", "v"], ["v", "u"]),
        Read({"x": [X, X + 1], "y": [Y + 1, Y]}, ("u", "v")),
    ),
    "datasets: other names": Situation(
        line, partial(datasets, ["u", "v"], ["u", "w"]), Refused("'dataset' are .*they differ")
    ),
    "names: numbers and text that are one": Situation(
        line, {1: {"x": X, "y": Y}, "1": {"x": X, "y": Y}}, Refused("'1'. came more than once")
    ),
    "names: text that looks like numbers": Situation(
        line,
        {n: {"x": X, "y": Y} for n in ("007", "7", "1.1", "1.10", "NA")},
        Read({}, ("007", "7", "1.1", "1.10", "NA")),
    ),
    "masked: one array": Situation(line, {"x": X, "y": GAP}, Read({"y": [NAN]})),
    "masked: a list of arrays": Situation(
        line, {"x": [X, X], "y": [GAP, GAP]}, Read({"y": [NAN, NAN]})
    ),
    "masked: a list of which one is": Situation(
        line, {"x": [X, X], "y": [Y, GAP]}, Read({"y": [Y, NAN]})
    ),
    "masked: a tuple, in a mapping": Situation(
        line, {"u": {"x": tuple(X), "y": GAP}}, Read({"y": [NAN]}, ("u",))
    ),
    "masked: a covariate": Situation(
        line, {"x": [masked(1.0, -999.0, 2.0, 3.0)], "y": [Y]}, Refused("'x'.*without gaps, got 1")
    ),
    "ragged: a list": Situation(
        line,
        {"x": [X, X[:2]], "y": [Y, Y[:2]]},
        Refused("'y': expected arrays of one length, got lengths .2, 4.*mapping"),
    ),
    "ragged: a list of masked arrays": Situation(
        line, {"x": [X, X[:2]], "y": [GAP, GAP[:2]]}, Refused("'y': expected arrays of one length")
    ),
    "ragged: a mapping": Situation(
        line,
        {"u": {"x": X, "y": Y}, "v": {"x": X[:2], "y": Y[:2]}},
        Read({"y": [Y, [*Y[:2], Y[1], Y[1]]]}, ("u", "v")),
    ),
    "NA: a nullable Series": Situation(
        line,
        {"x": X, "y": pd.Series([1, None, 2, 3], dtype="Int64")},
        Read({"y": [[1, np.nan, 2, 3]]}),
    ),
    "NA: a nullable covariate": Situation(
        line,
        {"x": pd.Series([1, None, 2, 3], dtype="Int64"), "y": Y},
        Refused("'x'.*without gaps"),
    ),
    "NA: a column of a table": Situation(
        line,
        pd.DataFrame({"dataset": "u", "x": X, "y": pd.Series([1, None, 2, 3], dtype="Int64")}),
        Read({"y": [[1, np.nan, 2, 3]]}, ("u",)),
    ),
    "codes: a Series of categories": Situation(
        line, {"x": pd.Series(list("abca"), dtype="category"), "y": Y}, Refused("'x'.*numbers")
    ),
    "covariate: a coordinate": Situation(
        line,
        xr.Dataset({"y": ("obs", Y)}, coords={"x": ("obs", X)}),
        Read({"x": [X], "y": [Y]}),
    ),
    "covariate: did not come": Situation(
        line, {"y": Y}, Warned("'x' did not come with the data: the values that the model has")
    ),
    "covariate: without a name of its dim": Situation(
        nameless, {"y": Y}, Warned("'x' did not come with the data")
    ),
    "covariate: of the groups, a placeholder": Situation(
        of_groups, {"y": Y}, Warned("'z' did not come with the data")
    ),
    "constant: of the groups": Situation(partial(of_groups, 1.0), {"y": Y}, Read({"y": [Y]})),
    "covariate: of another case": Situation(
        line, {"y": Y, "X": X}, Refused("expected 'x', as the model calls it, got 'X'")
    ),
    "covariate: nothing depends on it": Situation(
        without_use, {"y": Y, "x": X}, RESERVED("nothing in the model depends on .'x'")
    ),
    "covariate: only its length counts": Situation(
        only_counted, {"y": Y, "x": X}, RESERVED("nothing in the model depends on .'x'")
    ),
    "name: a covariate with brackets, in a table": Situation(
        partial(named, "x[0]", "data"), pd.DataFrame({"x[0]": X, "y": Y}), Read({"x[0]": [X]})
    ),
    "unknown: a variable": Situation(
        line, {"y": Y, "x": X, "weight": X}, Refused("'weight'. is neither an observed")
    ),
    "unknown: a typing error": Situation(line, {"x": X, "yy": Y}, Refused("'y'. did not come")),
    **{
        f"name: {kind} {name!r}": Situation(
            partial(named, name, kind), {"y": Y}, RESERVED(f"'{name}': expected a name of its own")
        )
        for kind, name in [
            ("free", "chain"),
            ("free", "draw"),
            ("free", "dataset"),
            ("deterministic", "draw"),
            ("data", "dataset"),
            ("observed", "dataset"),
            ("dim", "dataset"),
        ]
    },
}
