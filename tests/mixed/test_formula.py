"""What a formula may say: every piece of it is used or refused, and nothing in it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from curvi._core.errors import InputError
from curvi.mixed import MixedModel
from curvi.mixed._formula import column_names, evaluate, parse
from tests.adversarial.formulas import ATTACK, SEEDS, table

pytestmark = pytest.mark.float64_only
ROOT = Path(__file__).parents[2]


def fuzz(count: int, seed: int) -> str:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.adversarial.formulas",
        str(count),
        str(seed),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_hostile_formulas_run_nothing(key):
    assert "accepted" in fuzz(4000, int(jax.random.key_data(key)[-1]))


@pytest.mark.slow
def test_a_million_hostile_formulas_run_nothing(key):
    assert "accepted" in fuzz(1_000_000, int(jax.random.key_data(key)[-1]))


@pytest.mark.parametrize(
    "text",
    [
        ATTACK,
        "y ~ T.__class__ + (1 | g)",
        "y ~ np.log(x) + (1 | g)",
        "y ~ eval('1') + (1 | g)",
        "y ~ `log`(x) + (1 | g)",
        "y ~ C(h, T.__globals__) + (1 | g)",
        "y ~ _x + (1 | g)",
        "eval('1') ~ x + (1 | g)",
        "y ~ x + (eval('1') | g)",
        "y ~ I(x == 'a\\'b') + (1 | g)",
    ],
)
def test_code_in_a_formula_is_refused(text):
    with pytest.raises(InputError):
        MixedModel(text).fit(table())


@pytest.mark.parametrize(
    "right",
    [
        "x z", "x, z", "x > 0", "x == 1", "x % 2", "x [z]", "x[z]", "x %in% g", "x ~ z",
        "x = z", "x // z", "x != z", "x 'z'", "x 1", "x {z}", "x (z)", "1 2", "2", "x + 3",
        "'x'", "x ^ 2", "(x + z)**x", "x**2",
        "(x + z)**1.5", "x | g", "x : ", "* x", "x & z", "x; z",
        "x @ z", "x$z", "x z + w", "(x", "x)", "{x", "log(x", "log()", "poly(x, 100000)",
        "poly(x, n)", "bs(x, df=10**6)", "log(x) z", "x.y.(z)", "x:(1 | g)", "(1 | g):x",
        "1e5",
    ],
)  # fmt: skip
def test_every_token_of_a_formula_is_used_or_refused(right):
    with pytest.raises(InputError, match="formula"):
        parse(f"y ~ {right} + (1 | g)")


@pytest.mark.parametrize(
    "bar",
    [
        "(1 + x z | g)", "(x, z | g)", "(x > 0 | g)", "(1 | g h)", "(1 | log(g))",
        "(1 | g | h)", "(| g)", "(1 |)", "(1 | )", "(1 | g + h)", "(1 | 'g')",
    ],
)  # fmt: skip
def test_every_token_of_a_group_term_is_used_or_refused(bar):
    with pytest.raises(InputError, match="formula"):
        parse(f"y ~ x + {bar}")


def test_a_column_called_intercept_is_refused_and_not_taken_for_the_constant():
    with pytest.raises(InputError, match="rename"):
        parse("y ~ Intercept + (1 | g)")


@pytest.mark.parametrize("text", SEEDS[1:])
def test_formulas_that_people_write_are_read(text):
    assert evaluate(parse(text), table()).common_columns()


def test_names_are_those_of_columns_alone():
    formula = parse("log(y) ~ C(h, Treatment('b')) + bs(x, df=4) + `odd name` + (1 + z | g:k)")
    assert column_names(formula) == {"y", "h", "x", "odd name", "z", "g", "k"}
    assert column_names(formula, response=False) == {"h", "x", "odd name", "z", "g", "k"}


def test_a_name_in_backquotes_is_a_column_whatever_it_looks_like():
    frame = table().assign(**{"_x": 1.0, "True": 2.0, "log": 3.0, "a.b": 4.0})
    matrices = evaluate(parse("y ~ 0 + `_x` + I(`True` + 1) + `log` + a.b + (1 | g)"), frame)
    X = matrices.evaluate(frame)[0]
    assert np.array_equal(X[0], [1.0, 3.0, 3.0, 4.0])
    assert "_x" in matrices.common_columns()


def test_expansions_and_nesting_are_bounded():
    many = " + ".join(f"x{i}" for i in range(20))
    for text in (f"y ~ ({many})**10", " * ".join(["y ~ x0", *(f"x{i}" for i in range(1, 20))])):
        with pytest.raises(InputError, match="terms"):
            parse(text)
    with pytest.raises(InputError, match="deep"):
        parse("y ~ " + "(" * 100 + "x" + ")" * 100)
    with pytest.raises(InputError, match="characters"):
        parse("y ~ " + "x + " * 100_000 + "x")


def test_spaces_and_numbers_with_exponents_change_nothing():
    frame = table()
    one = evaluate(parse("y ~ I(x * 1e2)+poly(x,2)+(1|g)"), frame).evaluate(frame)[0]
    other = evaluate(parse("y  ~  I( x*100 ) + poly( x , 2 )\n + ( 1 | g )"), frame).evaluate(
        frame
    )[0]
    assert np.array_equal(one, other)
