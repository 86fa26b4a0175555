"""Containers that numbers come in, order between variables and datasets, data inside of models."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pytensor.tensor.extra_ops import to_one_hot
from situation import Read, Refused, Situation, Warned, reals
from situations_of_labels import (
    BACK,
    MATRIX,
    TEXT,
    UNLIKE,
    Columns,
    X,
    Y,
    frame,
    line,
    nameless,
    schools,
)
from situations_of_values import MODELS

NAMES = ["ann", "bob"]
GAP = Read({"y": [[1, np.nan, 2, 3]]})
FLAGS = Read({"y": [[1, np.nan, 0, 1]]})
TURNED = Read({"x": [X], "y": [Y[::-1]]})
NO_ARRAY = "which NumPy does not read as an array"
FROM_ONE = Refused("'i'.*it indexes.*3 elements.*got 1 to 3.*Numbers counted from 1")


def wide(values: object, names: object, columns: object = None) -> pd.DataFrame:
    """A row for each dataset."""
    return pd.DataFrame(values, index=names, columns=columns)


def scalars() -> pm.Model:
    with pm.Model() as made:
        pm.Normal("y", pm.Normal("b") * pm.Data("x", 1.0), 1, observed=0.3)
    return made


def groups() -> pm.Model:
    """Parameters of groups that the model has no names for."""
    with pm.Model(coords={"g": range(3)}) as made:
        pm.Normal("y", pm.Normal("b", dims="g"), 1, observed=np.zeros(3), dims="g")
    return made


def measured_groups() -> pm.Model:
    with pm.Model(coords={"g": range(3)}) as made:
        b, x = pm.Normal("b", dims="g"), pm.Data("x", np.zeros(3), dims="g")
        pm.Normal("y", b * x, 1, observed=np.zeros(3), dims="g")
    return made


def two_lengths() -> pm.Model:
    """Two observed variables that have no dim in common."""
    with pm.Model(coords={"obs": range(10, 14), "trial": range(20, 24)}) as made:
        b = pm.Normal("b")
        pm.Normal("y", b, 1, observed=np.zeros(4), dims="obs")
        pm.Normal("t", b, 1, observed=np.zeros(4), dims="trial")
    return made


def weighted() -> pm.Model:
    with pm.Model(coords={"obs": range(4)}) as made:
        x, w = (pm.Data(n, np.zeros(4), dims="obs") for n in ("x", "w"))
        pm.Normal("y", pm.Normal("b") * x + w, 1, **reals())
    return made


def shares() -> pm.Model:
    with pm.Model() as made:
        a = pm.Gamma("a", 2, 1, shape=3)
        pm.Dirichlet("y", a, observed=np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]))
    return made


def indexed(use: str) -> pm.Model:
    """Data that index where no plain `b[i]` says so."""
    with pm.Model() as made:
        i, b = pm.Data("i", np.zeros(4, int)), pm.Normal("b", shape=3)
        if use == "potential":
            pm.Potential("p", pt.log(pm.math.softmax(b))[i].sum())
            i = np.zeros(4, int)
        if use == "own density":
            density = lambda v, b, i: -0.5 * (v - b[i]) ** 2  # noqa: E731
            shape = {"signature": "(g),(n)->(n)", "observed": np.arange(4.0)}
            pm.CustomDist("y", b, i, logp=density, **shape)
            return made
        if use == "added":
            mean = pt.inc_subtensor(pt.zeros(3)[i], 1.0) @ b
        else:
            mean = to_one_hot(i, 3) @ b
        pm.Normal("y", mean, 1, observed=np.arange(4.0))
    return made


def process() -> pm.Model:
    """The boundary of the basis follows from the placeholder."""
    with pm.Model() as made:
        x = pm.Data("x", np.linspace(0, 1, 4)[:, None])
        gp = pm.gp.HSGP(m=[3], c=2.0, cov_func=pm.gp.cov.ExpQuad(1, ls=pm.Gamma("l", 3, 1)))
        pm.Normal("y", gp.prior("f", x), 1, observed=np.zeros(4))
    return made


def by_comparison() -> pm.Model:
    with pm.Model() as made:
        i = pm.Data("i", np.zeros(4, int))
        pm.Normal("y", pt.eq(i[:, None], np.arange(3)) @ pm.Normal("b", shape=3), 1, observed=X)
    return made


def of_classes() -> pm.Model:
    """An index of what is an index."""
    with pm.Model() as made:
        school, of = pm.Data("school", [0, 0, 1]), pm.Data("class", np.zeros(4, int))
        pm.Normal("y", pm.Normal("b", shape=2)[school[of]], 1, observed=X)
    return made


def second_column() -> pm.Model:
    with pm.Model() as made:
        x = pm.Data("x", np.zeros((4, 2)))
        pm.Normal("y", pm.Normal("b") * x[:, 1], 1, observed=np.zeros(4))
    return made


def weighed() -> pm.Model:
    with pm.Model() as made:
        w = pm.Data("w", np.array([0.5, 0.5]))
        parts = [pm.Normal.dist(pm.Normal("b"), 1), pm.Normal.dist(3, 1)]
        pm.Mixture("y", w, parts, observed=np.zeros(4))
    return made


def of_its_own(index: object) -> pm.Model:
    """An index that is no covariate."""
    with pm.Model() as made:
        i = pm.Data("i", index) if isinstance(index, list) else index
        i = index() if callable(index) else i
        pm.Normal("y", pm.Normal("b", shape=3)[i], 1, observed=np.arange(4.0))
    return made


COUNTED_FROM_1 = partial(of_its_own, [1, 2, 3, 1])
ARRAY_FROM_1 = partial(of_its_own, np.array([1, 2, 3, 1]))
CODES = partial(of_its_own, np.array([0, -1, 1, 1]))
OWN = np.array([1.3, 2.1, 3.7, 4.23])


def beside(made: Callable[[], object]) -> pm.Model:
    """Rows with labels, beside an array that the graph makes."""
    with pm.Model(coords={"obs": list("abcd")}) as model:
        pm.Normal("y", pm.Normal("b") * made(), 1, **reals())
    return model


MADE = {
    "arange": partial(pt.arange, 4),
    "stack": partial(pt.stack, [0.0, 2.0, 1.0, 5.0]),
    "linspace": partial(pt.linspace, 0, 1, 4),
    "array": lambda: X - 1,
    "flags": lambda: pt.switch(X > 2, 1.0, -1.0),
}


def copied(where: str) -> pm.Model:
    with pm.Model() as made:
        b = pm.Normal("b", 0, 100)
        if where == "scale":
            pm.Normal("y", OWN.mean() + OWN.std() * b, OWN.std(), observed=OWN)
            return made
        if where == "potential":
            pm.Potential("p", -50 * ((b - OWN) ** 2).sum())
        if where == "logarithm of a deterministic":
            pm.Deterministic("residual", np.log(OWN) - b)
            pm.Normal("y", b, 1, observed=OWN)
            return made
        if where == "deterministic":
            held = pm.Data("held", OWN)
            mean = pm.Deterministic("mean", b + pt.zeros(held.shape))
            pm.Deterministic("residual", held - mean)
            pm.Normal("y", b, 1, observed=held)
            return made
        pm.Normal("y", b if where == "potential" else b * np.log(OWN), 1, observed=OWN)
    return made


def tree(**groups: dict[str, object]) -> xr.DataTree:
    sets = {n: xr.Dataset({k: ("obs", v) for k, v in g.items()}) for n, g in groups.items()}
    return xr.DataTree.from_dict(sets)


def with_constants() -> pm.Model:
    with pm.Model(coords={"obs": range(4)}) as made:
        pm.Data("unused", X, dims="obs")
        w, held = pm.Data("w", X, dims="obs"), pm.Data("held", Y, dims="obs")
        pm.Normal("y", pm.Normal("b") * w, 1, observed=held, dims="obs")
    return made


def trials() -> pm.Model:
    with pm.Model(coords={"obs": range(4), "trial": list("abc")}) as made:
        pm.Normal("y", pm.Normal("a"), 1, observed=np.zeros((4, 3)), dims=("obs", "trial"))
    return made


def series() -> pm.Model:
    with pm.Model(coords={"year": range(4)}) as made:
        start = pm.Normal.dist(0, 1)
        pm.AR("y", pm.Normal("rho"), 1, init_dist=start, observed=X + 1, dims="year")
    return made


def taken_from(name: str, values: np.ndarray) -> xr.DataArray:
    return xr.DataArray(values, dims="obs", coords={"dataset": name})


LEVELS = [("a", 1), ("a", 2), ("b", 1)]


def in_long(names: list[str]) -> pd.DataFrame:
    return pd.DataFrame(xy(), index=pd.Index(names, name="dataset"))


def tree_with_lengths() -> xr.DataTree:
    """As `sample` gives it of datasets of two lengths."""
    gaps = np.where(np.arange(4) < [[4], [2]], 1.0, np.nan)
    groups = {"observed_data": {"y": gaps * Y}, "constant_data": {"x": gaps * X}}
    sets = {}
    for name, values in groups.items():
        arrays = {k: (("dataset", "obs"), v) for k, v in values.items()}
        arrays["obs_length"] = ("dataset", np.array([4, 2]))
        sets[name] = xr.Dataset(arrays, coords={"dataset": ["u", "v"], "obs": range(4)})
    return xr.DataTree.from_dict(sets)


def by_letter(order: str) -> pd.Series:
    return pd.Series([1.0, 2.0, 3.0], index=list(order))


def by_number(order: list[int]) -> pd.Series:
    return pd.Series([1.0, 2.0, 3.0], index=order)


def xy(**given: object) -> dict[str, object]:
    return {"x": X, "y": Y, **given}


CASES: dict[str, Situation] = {
    "order: Series, one sorted, one numbered by pandas": Situation(
        line,
        xy(x=pd.Series(X, index=[3, 2, 1, 0]), y=pd.Series(Y)),
        TURNED,
    ),
    "order: two labelled beside a numbered one": Situation(
        weighted,
        {
            "y": pd.Series(Y),
            "x": pd.Series(X, index=list("abcd")),
            "w": pd.Series(Y, index=list("dcba")),
        },
        Read({"x": [X], "w": [Y[::-1]], "y": [Y]}),
    ),
    "order: two that differ beside a numbered one": Situation(
        weighted,
        {
            "x": pd.Series(Y),
            "w": pd.Series(X, index=list("abcd")),
            "y": pd.Series(Y, index=list("abce")),
        },
        Refused("'y': labels of 'obs' are .* those of 'w' are .*: they differ"),
    ),
    "order: lists of Series": Situation(
        line,
        {
            "x": [pd.Series(X, index=list("abcd")), pd.Series(X, index=list("abcd"))],
            "y": [pd.Series(Y, index=list("dcba")), pd.Series(Y, index=list("abcd"))],
        },
        Read({"x": [X, X], "y": [Y[::-1], Y]}),
    ),
    "order: lists of Series that differ": Situation(
        line,
        {"x": [pd.Series(X, index=list("abcd"))], "y": [pd.Series(Y, index=list("abce"))]},
        Refused(UNLIKE.message.replace("'y':", "'y' of dataset '0':")),
    ),
    "order: wide tables": Situation(
        line,
        {"x": wide([X, X + 9], NAMES), "y": wide([Y + 1, Y], NAMES[::-1])},
        Read({"x": [X, X + 9], "y": [Y, Y + 1]}, ("ann", "bob")),
    ),
    "order: wide tables of other datasets": Situation(
        line,
        {"x": wide([X, X], NAMES), "y": wide([Y, Y], ["ann", "rob"])},
        Refused("labels of 'dataset' are .*'rob'.* they differ"),
    ),
    "order: columns of wide tables": Situation(
        line,
        {"x": wide([X], ["ann"], list("abcd")), "y": wide([Y], ["ann"], list("dcba"))},
        TURNED,
    ),
    "order: columns of wide tables, named by variable": Situation(
        line,
        {
            "x": wide([X, X], NAMES, ["x1", "x2", "x3", "x4"]),
            "y": wide([Y, Y], NAMES, ["y1", "y2", "y3", "y4"]),
        },
        Read({"x": [X, X], "y": [Y, Y]}, ("ann", "bob")),
    ),
    "order: columns of wide tables that the model knows": Situation(
        schools,
        {"x": wide([X], ["u"], list("ABCD")), "y": wide([Y], ["u"], list("DCBA"))},
        TURNED,
    ),
    "order: columns of wide tables that the model does not know": Situation(
        schools,
        {"x": wide([X], ["u"], ["x1", "x2", "x3", "x4"]), "y": wide([Y], ["u"])},
        Refused("'school' are .'x1'.* the model's are .'A'.*they differ.*set_axis.range.4"),
    ),
    "order: columns of wide tables beside placeholders": Situation(
        two_lengths,
        {"y": wide([Y], ["u"], ["y1", "y2", "y3", "y4"]), "t": wide([Y], ["u"], list("abcd"))},
        Read({"y": [Y], "t": [Y]}),
    ),
    "order: a panel's columns, in another case": Situation(
        trials,
        {"y": wide(MATRIX[:1].repeat(4, 0), range(4), list("CBA"))},
        Warned("labels of dim 'trial'.*by position"),
    ),
    "long: columns of one dataset": Situation(
        line,
        {n: dict(rows) for n, rows in in_long(list("uuvv")).groupby(level=0)},
        Read({"y": [Y[:2], Y[2:]]}, ("u", "v")),
    ),
    "long: tables of one column": Situation(
        line,
        {k: in_long(list("uuvv"))[[k]] for k in "xy"},
        Refused("'x': expected one dataset.*its rows have names of datasets"),
    ),
    "order: a wide table of rows": Situation(
        MODELS["normal"],
        {"y": wide(MATRIX, pd.date_range("2020", periods=4), list("uvw"))},
        Warned("4 datasets of 3 rows,.*own has 4 rows.*transpose"),
    ),
    "order: a wide table, datasets in its columns": Situation(
        line,
        {
            k: pd.DataFrame({"ann": v, "bob": v + 1}, index=pd.Index(range(4), name="obs"))
            for k, v in (("x", X), ("y", Y))
        },
        Read({"x": [X, X + 1], "y": [Y, Y + 1]}, ("ann", "bob")),
    ),
    "order: a square table with its axes turned": Situation(
        trials,
        {"y": pd.DataFrame(MATRIX[:3].T, index=pd.Index(list("abc"), name="trial"))},
        Read({"y": [MATRIX[:3]]}),
    ),
    "order: years of a series": Situation(
        series, {"y": pd.Series(Y, index=[2001, 2002, 2003, 2004])}, Read({"y": [Y]})
    ),
    "order: years of a series that go back": Situation(
        series,
        {"y": pd.Series(Y, index=[2004, 2003, 2002, 2001])},
        Warned("'y': labels along 'year' are .'2004'.* do not rise.*likelihood is a series"),
    ),
    "order: a table of a series, the newest first": Situation(
        series,
        pd.DataFrame({"y": Y}, index=pd.date_range("2020", periods=4, name="Date")[::-1]),
        Warned("'year' are .'2020-01-04T00:00:00'.* do not rise"),
    ),
    "order: a table of a series of a dozen": Situation(
        series, pd.DataFrame({"y": np.arange(12.0)}), Read({"y": [np.arange(12.0)]})
    ),
    "order: a table of a series, sorted by another column": Situation(
        series,
        pd.DataFrame({"y": Y, "when": X[::-1]}).sort_values("when"),
        Read({"y": [Y[::-1]]}),
    ),
    "order: lists that are taken from datasets in different orders": Situation(
        line,
        {k: [taken_from(n, v) for n in order] for k, v, order in (("x", X, "uv"), ("y", Y, "vu"))},
        Refused("dataset '0': expected variables of one dataset, got .'x': 'u', 'y': 'v'"),
    ),
    "labels: of two levels": Situation(
        Columns(LEVELS), frame(pd.MultiIndex.from_tuples(LEVELS[::-1])), BACK
    ),
    "covariate: what the values are over": Situation(
        nameless, xr.Dataset({"y": ("x", Y)}, coords={"x": X - 1}), Read({"x": [X - 1], "y": [Y]})
    ),
    "order: one number for each dataset": Situation(
        scalars,
        {"x": pd.Series([1.0, 2.0], index=NAMES), "y": pd.Series([5.0, 7.0], index=NAMES[::-1])},
        Read({"x": [1, 2], "y": [7, 5]}, ("ann", "bob")),
    ),
    "order: groups of datasets, where the model has no names": Situation(
        groups,
        {"u": {"y": by_letter("abc")}, "v": {"y": by_letter("cba")}},
        Refused("'g' dataset 'v' has the labels .'c', 'b', 'a'.*Give the model the labels"),
    ),
    "order: groups of datasets, of the third that of the second": Situation(
        groups,
        {n: {"y": by_letter(order)} for n, order in zip("uvw", ("abc", "def", "fed"), strict=True)},
        Refused("'g' dataset 'w' has the labels .'f', 'e', 'd'.*'v' .'d', 'e', 'f'"),
    ),
    "order: groups of datasets in lists": Situation(
        groups,
        {"y": [by_letter("abc"), by_letter("cba")]},
        Refused("'g' dataset '1' has the labels .'c', 'b', 'a'"),
    ),
    "order: groups of datasets, numbered": Situation(
        groups,
        {"u": {"y": by_number([0, 1, 2])}, "v": {"y": by_number([2, 1, 0])}},
        Read({"y": [[1, 2, 3], [3, 2, 1]]}, ("u", "v")),
    ),
    "order: groups, one variable numbered by pandas": Situation(
        measured_groups,
        {"x": by_number([2, 1, 0]), "y": pd.Series([1.0, 2.0, 3.0])},
        Read({"x": [[3, 2, 1]], "y": [[1, 2, 3]]}),
    ),
    "order: groups of datasets, numbered in a table": Situation(
        groups,
        pd.DataFrame({"dataset": list("uuuvvv"), "g": [0, 1, 2, 2, 1, 0], "y": np.arange(6.0)}),
        Read({"y": [[0, 1, 2], [5, 4, 3]]}, ("u", "v")),
    ),
    "order: other groups in each dataset": Situation(
        groups, {"u": {"y": by_letter("abc")}, "v": {"y": by_letter("def")}}, Read({}, ("u", "v"))
    ),
    "order: groups of datasets in a table": Situation(
        groups,
        pd.DataFrame({"dataset": list("uuuvvv"), "g": list("abccba"), "y": np.arange(6.0)}),
        Refused("'g' dataset 'v' has the labels .'c', 'b', 'a'"),
    ),
    "order: groups of datasets in a named index": Situation(
        groups,
        {
            n: by_letter(order).rename_axis("g").to_frame("y")
            for n, order in zip("uv", ("abc", "cba"), strict=True)
        },
        Refused("'g' dataset 'v' has the labels .'c', 'b', 'a'"),
    ),
    "objects: numbers": Situation(
        line,
        xy(y=pd.Series([1, 2.5], dtype=object).loc[[0, 1, 0, 1]].to_numpy()),
        Read({"y": [[1, 2.5, 1, 2.5]]}),
    ),
    "objects: None": Situation(line, xy(y=[1, None, 2, 3]), GAP),
    "objects: NA": Situation(line, xy(y=[1, pd.NA, 2, 3]), GAP),
    "objects: flags and None": Situation(
        MODELS["bernoulli"], {"y": [True, None, False, True]}, FLAGS
    ),
    "objects: flags of a table": Situation(
        MODELS["bernoulli"], pd.DataFrame({"y": [True, None, False, True]}), FLAGS
    ),
    "objects: flags of pandas": Situation(
        MODELS["bernoulli"], {"y": pd.array([True, None, False, True], dtype="boolean")}, FLAGS
    ),
    "objects: None in a covariate": Situation(
        line, xy(x=[1, None, 2, 3]), Refused("'x'.*without gaps, got 1")
    ),
    "objects: whole numbers that no float holds, and None": Situation(
        line, xy(y=[2**53 + 1, None, 2, 3]), Refused("'y'.*expected numbers")
    ),
    "objects: a word": Situation(line, xy(y=[1, "two", 3, 4]), Refused("'y'.*pd.to_numeric")),
    "objects: categories": Situation(
        MODELS["ordered"],
        {"y": pd.Series(pd.Categorical(list("abca"), list("abc"), ordered=True))},
        Refused("'y'.*such as 'a'.*pd.Categorical.*codes"),
    ),
    "objects: durations": Situation(
        line, xy(x=pd.to_timedelta([1, 2, 3, 4], unit="D")), Refused("'x'.*np.timedelta64")
    ),
    "objects: a generator": Situation(
        line, lambda: xy(x=(v for v in X)), Refused(f"'x'.*got generator, {NO_ARRAY}")
    ),
    "objects: nothing": Situation(line, xy(y=None), Refused(f"'y'.*got NoneType, {NO_ARRAY}")),
    "sparse: a column": Situation(
        line, pd.DataFrame(xy(x=pd.arrays.SparseArray([0.0, 1, 0, 2]))), Read({"x": [[0, 1, 0, 2]]})
    ),
    "sparse: a Series with gaps": Situation(
        line,
        xy(y=pd.Series(pd.arrays.SparseArray([1.0, np.nan, 2, 3]))),
        GAP,
    ),
    "bytes: a dataset's name": Situation(
        line,
        xr.Dataset(
            {k: (("dataset", "obs"), [v]) for k, v in xy().items()},
            coords={"dataset": np.array([b"ann"])},
        ),
        Read({"y": [Y]}, ("ann",)),
    ),
    "bytes: labels": Situation(
        TEXT,
        {
            "X": xr.DataArray(
                MATRIX, dims=("obs", "p"), coords={"p": np.array([b"bmi", b"age", b"dose"])}
            ),
            "y": Y,
        },
        BACK,
    ),
    "names: of blanks only": Situation(
        line, {"u": xy(), "u ": xy()}, Warned("differ in blanks only")
    ),
    "tree: a dataset in each node": Situation(
        line, partial(tree, u=xy(), v=xy()), Read({"y": [Y, Y]}, ("u", "v"))
    ),
    "tree: a covariate as coordinate": Situation(
        line,
        lambda: xr.DataTree(xr.Dataset({"y": ("obs", Y)}, coords={"x": ("obs", X)})),
        Read({"x": [X], "y": [Y]}),
    ),
    "tree: the groups of ArviZ": Situation(
        line,
        partial(tree, posterior={"b": Y}, observed_data={"y": Y}, constant_data={"x": X}),
        Read({"x": [X], "y": [Y]}, ("0",)),
    ),
    "tree: of pm.sample, constants and observations twice": Situation(
        with_constants,
        partial(tree, observed_data={"y": Y}, constant_data={"w": X, "held": Y, "unused": X}),
        Read({"y": [Y], "w": [X]}, ("0",)),
    ),
    "tree: of pm.sample, observations twice that differ": Situation(
        with_constants,
        partial(tree, observed_data={"y": Y}, constant_data={"held": X, "w": X}),
        Refused("'held' holds the observations of 'y', and both came, with different"),
    ),
    "tree: of pmcl, with lengths": Situation(
        line,
        tree_with_lengths,
        Read({"x": [X, [1, 2, 2, 2]], "y": [Y, [0.5, 1, 1, 1]]}, ("u", "v")),
    ),
    "tree: of pmcl, with lengths, observations without datasets": Situation(
        line,
        lambda: tree_with_lengths().assign(
            observed_data=xr.DataTree(xr.Dataset({"y": ("obs", Y)}))
        ),
        Read({"x": [X, [1, 2, 2, 2]], "y": [Y, [0.5, 1, 1, 1]]}, ("u", "v")),
    ),
    "groupby: one column": Situation(
        MODELS["normal"],
        lambda: pd.DataFrame({"g": list("uuvv"), "y": Y}).groupby("g")["y"],
        Read({"y": [Y[:2], Y[2:]]}, ("u", "v")),
    ),
    "table: columns of two levels": Situation(
        line,
        pd.DataFrame(MATRIX[:, :2], columns=pd.MultiIndex.from_tuples([("x", "m"), ("y", "m")])),
        Refused("one name each, got .'x', 'm'"),
    ),
    "table: an index called as a column": Situation(
        line,
        pd.DataFrame(xy(dataset=list("uvuv")), index=pd.Index(range(4), name="dataset")),
        Read({"y": [Y[::2], Y[1::2]]}, ("u", "v")),
    ),
    "shares: of one": Situation(
        shares,
        {"y": [[0.33, 0.33, 0.33], [0.1, 0.1, 0.8]]},
        Read({"y": [[[0.33] * 3, [0.1, 0.1, 0.8]]]}),
    ),
    "shares: percentages": Situation(
        shares,
        {"y": [[20, 30, 50], [10, 10, 80]]},
        Refused("sum to 1, got a sum of 100"),
    ),
    "shares: one row that is not whole": Situation(
        shares,
        {"y": [[0.2, 0.3, 0.5], [0.1, 0.1, 0.7]]},
        Refused("a sum of 0.9 in row 1"),
    ),
    "shares: nothing of one": Situation(
        shares, {"y": [[0.2, 0.8, 0], [0.1, 0.1, 0.8]]}, Refused("'y'.*got 0 in row 0, entry 2")
    ),
    **{
        f"index: {use}, from 1": Situation(
            partial(indexed, use), {"i": [1, 2, 3, 1], "y": Y}, FROM_ONE
        )
        for use in ("added", "one-hot", "potential", "own density")
    },
    "index: one-hot, from 0": Situation(
        partial(indexed, "one-hot"), {"i": [0, 1, 2, 1], "y": Y}, Read({"i": [[0, 1, 2, 1]]})
    ),
    "index: one-hot by comparison, from 0": Situation(
        by_comparison, {"i": [0, 1, 2, 1], "y": Y}, Read({"i": [[0, 1, 2, 1]]})
    ),
    "index: one-hot by comparison, from 1": Situation(
        by_comparison, {"i": [1, 2, 3, 1], "y": Y}, Warned("'i' with 0 to 2, and got 1 to 3")
    ),
    "index: of an index, out of range": Situation(
        of_classes,
        {"school": [0, 1, 1], "class": [0, 1, 3, 2], "y": Y},
        Refused("'class'.*it indexes 'school', which has 3 elements.*got 0 to 3"),
    ),
    "index: a column that there is not": Situation(
        second_column,
        {"x": [[[1.0], [2], [3], [4]]], "y": [Y]},
        Refused("'0': an array indexes 'x', which has 1 elements, by 1"),
    ),
    "weights: of a mixture": Situation(weighed, {"w": [[0.3, 0.7]], "y": [Y]}, Read({"y": [Y]})),
    "weights: of a mixture, counts": Situation(
        weighed, {"w": [[2, 3]], "y": [Y]}, Refused("'w': expected 0 <= weights.*sum.weights. == 1")
    ),
    "basis: inside of its boundary": Situation(
        process, {"x": [[[-0.4], [0], [0.5], [1.4]]], "y": [Y]}, Read({"y": [Y]})
    ),
    "basis: outside of its boundary": Situation(
        process, {"x": [[[0], [1], [2], [3]]], "y": [Y]}, Refused("'x' are up to 1.5 outside.*`L=`")
    ),
    "index: computed from the model's own data": Situation(
        partial(of_its_own, lambda: -pt.as_tensor(np.array([0, -2, -1, 0]))),
        {"y": Y},
        Read({"y": [Y]}),
    ),
    "index: computed from the model's own data, out of range": Situation(
        partial(of_its_own, lambda: abs(pm.Data("i", [0, -3, -1, 0]))),
        {"y": Y},
        Refused("'i'.*it indexes 'b'.*0 to 2, got 0 to 3 .computed from i"),
    ),
    "index: the model's own data, by -1": Situation(
        partial(of_its_own, [0, -1, 1, 2]), {"y": Y}, Refused("missing category.*last.*write 2")
    ),
    "index: the model's own data, from 1": Situation(COUNTED_FROM_1, {"y": Y}, FROM_ONE),
    "index: an array of the model, from 1": Situation(
        ARRAY_FROM_1, {"y": Y}, Refused("an array indexes 'b', which has 3 elements, by 3")
    ),
    "index: an array of codes with -1": Situation(CODES, {"y": Y}, Warned("indexes 'b' by -1")),
    **{
        f"made: {name}, {what}": Situation(partial(beside, made), data, outcome)
        for name, made in MADE.items()
        for what, data, outcome in [
            ("turned", {"y": pd.Series(Y, index=list("dcba"))}, Read({"y": [Y[::-1]]})),
            ("one row", {"y": [0.5]}, Refused("'y' of dataset '0': got shape .1,., .*the array .")),
        ]
    },
    "made: more rows": Situation(
        partial(beside, MADE["arange"]),
        {"u": {"y": Y}, "v": {"y": [*Y, 1.0]}},
        Refused("'y' of dataset 'v': got shape .5,., .*own .4,.: .*the array .0, 1, 2, "),
    ),
    "copy: in a potential": Situation(
        partial(copied, "potential"), {"y": Y}, Warned("'y': the model also has its own")
    ),
    "copy: its mean and standard deviation": Situation(
        partial(copied, "scale"), {"y": Y}, Warned("the likelihood has the mean of its own")
    ),
    "copy: its own mean and standard deviation": Situation(
        partial(copied, "scale"), {"y": OWN}, Read({"y": [OWN]})
    ),
    "copy: in a deterministic": Situation(
        partial(copied, "deterministic"), {"y": Y}, Read({"y": [Y]})
    ),
    "copy: its logarithms in a deterministic": Situation(
        partial(copied, "logarithm of a deterministic"),
        {"y": Y},
        Warned("'residual' has the model's own values of 'y'"),
    ),
    "copy: in a deterministic, as it is": Situation(
        partial(copied, "deterministic"), {"y": OWN}, Read({"y": [OWN]})
    ),
    "copy: its logarithms": Situation(
        partial(copied, "logarithm"), {"y": Y}, Warned("'y': the model also has its own")
    ),
}
