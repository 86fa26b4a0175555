"""What people do with data: each situation has its right value, its error or its warning."""

import warnings

import numpy as np
import pytest
import situations_of_labels as labels
import situations_of_values as values
from situation import Read, Refused, Situation, read

CASES: dict[str, Situation] = {**values.CASES, **labels.CASES}


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
            task = read(model, data)
        for variable, expected in outcome.values.items():
            np.testing.assert_array_equal(task.with_nan(variable), expected)
        assert outcome.names in (None, task.names)
    else:
        with pytest.warns(UserWarning, match=outcome.message):
            read(model, data)
