"""Datasets with groups of their own: names of groups go with their values, whatever the form."""

from dataclasses import replace

import level_models as models
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import pmcl
from pmcl.cli.files import read_data
from pmcl.compile import compile_model
from pmcl.data.grouped import GroupedReader
from pmcl.data.task import Layout


@pytest.fixture(scope="module")
def schools() -> GroupedReader:
    """Everything is along the groups."""
    compiled = compile_model(models.eight_schools(), covariates=["sigma"])
    return GroupedReader(Layout.of(compiled, None), "school", "")


@pytest.fixture(scope="module")
def counties() -> GroupedReader:
    """Rows say of which group they are."""
    compiled = compile_model(models.counties(), covariates=["in_county", "uranium"])
    return GroupedReader(Layout.of(compiled, "row"), "county", "in_county")


A, B = np.array([1.0, 2, 3]), np.array([10.0, 20, 30])


def by(labels: object, values: np.ndarray = B) -> pd.Series:
    return pd.Series(values, index=labels)


PLACES = (["0", "1", "2"], A, B)


@pytest.mark.parametrize(
    ("sigma", "y", "expected"),
    [
        (pd.Series(A), by([2, 1, 0], B[::-1]), PLACES),
        (by([2, 1, 0], A[::-1]), pd.Series(B), PLACES),
        (by([2, 1, 0], A[::-1]), by([2, 1, 0], B[::-1]), PLACES),
        (pd.Series(A), by([*"cab"]), ([*"cab"], A, B)),
        (by([*"abc"], A), by([*"cab"], B[[2, 0, 1]]), ([*"abc"], A, B)),
        (by([7, 8, 9], A), by([9, 8, 7], B[::-1]), (["7", "8", "9"], A, B)),
        (
            xr.DataArray(A, dims="school", coords={"school": [*"abc"]}),
            by([*"cba"], B[::-1]),
            ([*"abc"], A, B),
        ),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_names_and_values_of_groups_are_of_one_order(schools, sigma, y, expected, named):
    data = {"sigma": sigma, "y": y}
    found = schools({"u": data} if named else data)
    (labels,), (one,) = found.labels, found.datasets.values()
    assert [*labels] == expected[0]
    np.testing.assert_array_equal(one["sigma"], expected[1])
    np.testing.assert_array_equal(one["y"], expected[2])


def test_numbers_in_another_order_beside_an_array_are_refused(schools):
    rows = pd.DataFrame({"y": B, "sigma": A[::-1]}).sort_values("sigma")
    for one in (rows.sigma.to_numpy(), [*rows.sigma]):
        with pytest.raises(pmcl.DataError, match="'y': labels along 'school'.*'sigma'.* no labels"):
            schools({"y": rows.y, "sigma": one})
    found = schools({"y": rows.y, "sigma": rows.sigma}).datasets["0"]
    np.testing.assert_array_equal(found["sigma"], A[::-1])


def test_names_in_the_index_and_constants_of_a_table(schools):
    table = pd.DataFrame({"y": B, "sigma": A, "k": 5.0}, index=pd.Index([*"abc"], name="school"))
    assert schools({"u": table}).labels == (("a", "b", "c"),)
    constants = {"k": np.array(2.0)}
    with pytest.raises(pmcl.DataError, match="'k'.*with other values in the model"):
        schools._replace(layout=replace(schools.layout, constants=constants))({"u": table})


def test_a_dataset_without_rows_is_refused(counties):
    with pytest.raises(pmcl.DataError, match="'in_county' of dataset '0': expected rows, got none"):
        counties({"y": np.zeros(0), "in_county": np.zeros(0, int), "uranium": B})


def test_lists_of_labelled_arrays_keep_each_ones_names(schools):
    data = {"sigma": [by([*"abc"], A), by([*"xyz"], A)], "y": [by([*"cba"], B[::-1]), B]}
    found = schools(data)
    assert found.labels == (("a", "b", "c"), ("x", "y", "z"))
    for one in found.datasets.values():
        np.testing.assert_array_equal(one["y"], B)


def test_names_in_a_file_are_text_as_they_stand(counties, tmp_path):
    lines = ["y,uranium,county", "0,1,007", "1,2,7", "2,1,007", "3,3,NA", "4,4,1.0"]
    path = tmp_path / "d.csv"
    path.write_text("\n".join(["dataset," + lines[0], *(f"u,{one}" for one in lines[1:])]))
    found = counties(read_data(path, labels={"county": None}))
    assert found.labels == (("007", "7", "NA", "1.0"),)
    np.testing.assert_array_equal(found.datasets["u"]["uranium"], [1, 2, 3, 4])
    # plain numbers are numbers, in their order
    path.write_text("dataset,y,uranium,county\nu,1,2,10\nu,2,1,9\n")
    assert counties(read_data(path, labels={"county": None})).labels == (("9", "10"),)
    path.write_text("dataset,y,uranium,county\nu,1,2,10\nu,2,1,\n")
    with pytest.raises(pmcl.DataError, match="a group in every row of column 'county', 1 rows"):
        counties(read_data(path, labels={"county": None}))


def test_two_columns_that_name_the_group_have_to_agree(counties):
    codes, uranium = [1, 0, 0], [1.0, 2.0, 2.0]
    table = pd.DataFrame({"y": B, "uranium": uranium, "county": [*"abb"], "in_county": codes})
    found = counties(table)
    assert found.labels == (("a", "b"),) and [*found.datasets["0"]["in_county"]] == [0, 1, 1]
    for other in ([1, 0, 2], [1, 1, 0], [1, 1, 1]):
        with pytest.raises(pmcl.DataError, match="'county' and 'in_county' both say of which"):
            counties(table.assign(in_county=other))


def test_names_that_differ_in_spelling_alone_are_warned_of(counties):
    table = pd.DataFrame({"y": B, "uranium": A, "county": ["Cook", "cook ", "Cass"]})
    with pytest.warns(UserWarning, match="groups of dataset '0' differ in case .*'Cook', 'cook '"):
        assert counties(table).labels == (("Cook", "cook ", "Cass"),)


def test_draws_are_compared_by_names_of_groups():
    z = np.random.default_rng(0).normal(size=(2, 200, 2, 3)) + [0.0, 3.0, 6.0]
    z[:, :, 1, 2] = np.nan  # the second dataset has two groups
    names = np.array([["a", "b", "c"], ["x", "y", ""]])

    def tree(order: list[list[int]]) -> xr.DataTree:
        turned = np.stack([z[:, :, i, which] for i, which in enumerate(order)], axis=2)
        labels = np.stack([names[i, which] for i, which in enumerate(order)])
        coords = {"dataset": ["u", "v"], "g_label": (("dataset", "g"), labels)}
        data = xr.Dataset({"t": (("chain", "draw", "dataset", "g"), turned)}, coords)
        return xr.DataTree.from_dict({"unconstrained_posterior": data})

    found = pmcl.compare(tree([[0, 1, 2], [0, 1, 2]]), tree([[2, 0, 1], [1, 0, 2]]), draws=100)
    assert (found["bias_mean"] < 1e-12).all() and (found["bias_sd"] < 1e-12).all()


ROWS = {"y": np.arange(4.0), "in_county": np.array([2, 2, 1, 0])}


def test_numbers_of_rows_are_places_or_names_and_never_guessed(counties):
    with pytest.raises(pmcl.DataError, match="'uranium': labels .*'in_county'.* no labels"):
        counties({**ROWS, "uranium": by([2, 1, 0], B[::-1])})
    found = counties({**ROWS, "uranium": by([7, 8, 9])})
    np.testing.assert_array_equal(found.datasets["0"]["in_county"], ROWS["in_county"])
    named = {**ROWS, "in_county": np.array(["2", "2", "1", "3"]), "uranium": by([1, 2, 3])}
    assert [*counties(named).datasets["0"]["in_county"]] == [1, 1, 0, 2]
    with pytest.raises(pmcl.DataError, match="got -1 to 2.*missing category"):
        counties({**ROWS, "in_county": np.array([2, 2, 1, -1]), "uranium": B})
    with pytest.raises(pmcl.DataError, match="got nan to nan. Drop the rows that have no group"):
        counties({**ROWS, "in_county": np.array([2, 2, 1, np.nan]), "uranium": B})
    with pytest.raises(pmcl.DataError, match=r"'in_county'.*may be places from 0 and names"):
        counties({**ROWS, "in_county": np.array([2, 2, 1, 1]), "uranium": by([1, 2, 3])})
