"""Every token of a formula is used, or refused: what nothing is left of, or is there twice."""

from __future__ import annotations

import numpy as np
import pytest

import curvi
from curvi.mixed._formula import evaluate, parse
from tests.adversarial.formulas import table

pytestmark = pytest.mark.float64_only

REFUSED = {
    "(x - x):z": "adds x and takes it away",
    "(x - x)*z": "adds x and takes it away",
    "z/(x - x)": "adds x and takes it away",
    "(x - x)**2": "adds x and takes it away",
    "x - x": "adds x and takes it away",
    "x + x*z - x": "leave out the x that stands alone",
    "x*z + x - x": "leave out the x that stands alone",
    "x - x + x": "adds x and takes it away",
    "x:z - z:x": "adds z:x and takes it away",
    "(x*z - x - z - x:z):h": "nothing is left",
    "(x + z)**0": "a power below two",
    "(x + z)**1": "a power below two",
    "x**2": "a single term to a power",
    "x^2": r"write \(a \+ b\)\*\*2",
    "x^1": r"write \(a \+ b\)\*\*2",
    "x*1": "inside a product",
    "1*x": "inside a product",
    "x:1": "inside a product",
    "x:0": "inside a product",
    "(x + 1):z": "inside a product",
    "x:x": "crosses x with itself",
    "x*x": "crosses x with itself",
    "x/x": "crosses x with itself",
    "x:z:x": "crosses x with itself",
    "z*(x:z)": "crosses x:z with itself",
    "z:z + x": "crosses z with itself",
    "offset(x) + offset(x)": r"offset\(x\) twice",
    "x + offset(z) + offset(z)": r"offset\(z\) twice",
    "0 + 0": "more than once",
    "1 + 1": "more than once",
    "-1 + 1": "more than once",
    "x - 1 - 1": "more than once",
    "x + 0 + 1": "more than once",
    "x + (x | g) + (1 | g)": "the intercept twice for the groups g",
    "x + (1 + x || g) + (1 | g)": "the intercept twice for the groups g",
    "x + (x | g) + (0 + x | g)": "x twice for the groups g",
    "x + (0 + x:z | g) + (0 + z:x || g)": "z:x twice for the groups g",
    "x + (1 | g/h) + (1 | g)": "the intercept twice for the groups g",
    "x + (1 | g:h) + (1 | h:g)": "the intercept twice for the groups h:g",
    "x + (1 | g/g)": "a column twice in the groups g:g",
    "x + (1 | g:g)": "a column twice in the groups g:g",
    "x + (1 | g/h/g)": "a column twice in the groups g:h:g",
    "x + (1 | g) + (1 | g)": "the intercept twice",
    "x + (1 + 0 | g)": "more than once",
    "x + (x - x | g)": "adds x and takes it away",
}  # fmt: skip


@pytest.mark.parametrize("right", REFUSED)
def test_a_form_of_which_something_would_be_lost_is_refused(right):
    with pytest.raises(curvi.InputError, match=REFUSED[right]):
        parse(f"y ~ {right}" if "|" in right else f"y ~ {right} + (1 | k)")


USED = {
    "x*z - x": ["Intercept", "z", "x:z"],
    "(x + z)**2 - x:z": ["Intercept", "x", "z"],
    "(x + z):(x + h)": ["Intercept", "x", "x:h[b]", "x:h[c]", "z:x", "z:h[a]", "z:h[b]", "z:h[c]"],
    "x + z + x": ["Intercept", "x", "z"],  # a term is there or not, as in R
    "x*z + x": ["Intercept", "x", "z", "x:z"],
    "(x + z)**9": ["Intercept", "x", "z", "x:z"],
    "x - 1": ["x"],
    "x - 0": ["Intercept", "x"],
    "x + (0 + z | g) + (1 | g)": ["Intercept", "x"],
    "x + (1 + x | g) + (0 + z | g)": ["Intercept", "x"],
}


@pytest.mark.parametrize("right", USED)
def test_forms_of_which_every_token_says_something_are_used(right):
    text = f"y ~ {right}" if "|" in right else f"y ~ {right} + (1 | g)"
    assert set(evaluate(parse(text), table()).common_columns()) == set(USED[right])


def test_different_offsets_add_up():
    frame = table()
    found = evaluate(parse("y ~ offset(x) + offset(2 * z) + (1 | g)"), frame).evaluate(frame)[1]
    np.testing.assert_allclose(found, frame.x + 2 * frame.z)
