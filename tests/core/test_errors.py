"""Errors keep what they carry, and warnings point at the user's own line."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

from curvi._core.errors import MisfitWarning, NumericalError, warn_user

pytestmark = pytest.mark.float64_only

COPIES = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),  # noqa: S301  written one line above
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES.keys())
def test_a_numerical_error_keeps_its_message_and_its_result(copied):
    error = NumericalError("the bound is nan at step 3", {"mean": np.arange(3.0)})
    error.add_note("fitting model 2")
    again = copied(error)
    assert type(again) is NumericalError
    assert str(again) == "the bound is nan at step 3"
    np.testing.assert_array_equal(again.result["mean"], np.arange(3.0))
    assert again.__notes__ == ["fitting model 2"]


def test_a_numerical_error_without_a_result_has_none():
    assert pickle.loads(pickle.dumps(NumericalError("no step"))).result is None  # noqa: S301


def test_a_warning_names_the_file_that_called_curvi():
    with pytest.warns(MisfitWarning, match="too narrow") as caught:
        warn_user("too narrow", MisfitWarning)
    assert caught[0].filename == __file__


def test_a_script_that_was_interrupted_ends_with_the_code_of_ctrl_c():
    code = "from curvi._core.errors import Interrupted\nraise Interrupted('in the middle')\n"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 130
    assert "in the middle" in done.stderr
