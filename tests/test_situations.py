"""What people do with data: each situation has its right value, its error or its warning."""

import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import situations_of_forms as forms
import situations_of_labels as labels
import situations_of_values as values
from situation import Read, Refused, Situation, Warned, compiled, read
from situations_of_files import FILES

from pmcl.cli.files import read_data
from pmcl.data.reading import task_of
from pmcl.data.task import Task

CASES: dict[str, Situation] = {**values.CASES, **labels.CASES, **forms.CASES}


def test_there_are_more_than_a_hundred_and_twenty() -> None:
    assert len(CASES) + len(FILES) >= 120


def test_the_page_on_trust_gives_these_counts() -> None:
    found = Counter(type(one.outcome) for one in [*CASES.values(), *FILES.values()])
    page = (Path(__file__).parents[1] / "docs" / "trust.md").read_text(encoding="utf-8")
    text = " ".join(page.split())
    assert f"{len(CASES) + len(FILES)} situations of data, types, labels and files" in text
    assert f"{found[Refused]} are refused" in text and f"{found[Warned]} are warned of" in text
    assert f"in {found[Read]} the values that are read are the right ones" in text


def check(task: Task, outcome: Read) -> None:
    for variable, expected in outcome.values.items():
        np.testing.assert_array_equal(task.with_nan(variable), expected)
    assert outcome.names in (None, task.names)


@pytest.mark.parametrize("name", CASES)
def test_it_is_right_or_said(name: str) -> None:
    model, data, outcome = CASES[name]
    data = data() if callable(data) else data
    if isinstance(outcome, Refused):
        with pytest.raises(outcome.kind, match=outcome.message):
            read(model, data)
    elif isinstance(outcome, Read):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # of what it compiles itself: whether it comes depends on what was compiled before
            warnings.filterwarnings("ignore", message="Cannot cache compiled function")
            check(read(model, data), outcome)
    else:
        with pytest.warns(UserWarning, match=outcome.message):
            read(model, data)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_right_or_said(name: str, tmp_path: Path) -> None:
    file = FILES[name]
    path = file.written(tmp_path)
    found = compiled(labels.line, ("x",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if isinstance(file.outcome, Refused):
            with pytest.raises(file.outcome.kind, match=file.outcome.message):
                task_of(found, read_data(path))
        else:
            check(task_of(found, read_data(path)), file.outcome)
