"""Parsers under fire: damaged files guided by coverage, and hostile tables made by hypothesis."""

import csv
import os
import resource
import sys

import hypothesis
import numpy as np
import pytest

from curvi._core.errors import CurviError
from curvi._core.text import printable
from curvi.datasets._table import parse_table
from curvi.paper.experiments._figures import as_csv
from tests.adversarial import strategies
from tests.adversarial.fuzz import FORMATS, INPUTS, Found, attempt, fuzz
from tests.conftest import SEED

pytestmark = pytest.mark.float64_only
COUNT = int(os.environ.get("CURVI_FUZZ_INPUTS", INPUTS))


def peak_bytes():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "count", [300, pytest.param(COUNT // len(FORMATS), marks=pytest.mark.slow)]
)
def test_a_damaged_file_parses_or_is_refused(name, count):
    before = peak_bytes()
    found = fuzz(name, count, SEED)
    assert found.inputs == count
    assert found.messages
    assert len(found.ways) > 20  # the fuzzer saw the parser at work
    assert peak_bytes() - before < 200 * 2**20


def test_the_fuzzer_reports_an_error_that_is_not_ours():
    def broken(data):
        raise IndexError("list index out of range")

    with pytest.raises(IndexError) as caught:
        attempt(broken, b"bad", Found())
    assert caught.value.__notes__ == ["input: b'bad'"]


def read(rows, target):
    """The table, or why it was refused."""
    try:
        return parse_table(strategies.as_file(rows), "toy", target)
    except CurviError as error:
        return str(error)


@hypothesis.settings(max_examples=60)
@hypothesis.given(strategies.tables())
def test_a_hostile_table_parses_or_is_refused_in_one_line(rows):
    found = read(rows, "y")
    if isinstance(found, str):
        assert found.isprintable()
        assert len(found) < 2000
    else:
        assert np.isfinite(found.X).all()
        assert found.X.shape == (len(rows) - 1, len(rows[0]) - 1)


@hypothesis.settings(max_examples=30)
@hypothesis.given(strategies.good_tables())
def test_good_numbers_among_hostile_text_are_read_as_they_are(rows):
    header, *lines = rows
    found = read(rows, "target")
    if len({printable(name) for name in header}) < len(header):
        assert "two columns are called" in found
        return
    assert list(found.names) == header[:-1]
    np.testing.assert_array_equal(found.X, [[float(cell) for cell in line[:-1]] for line in lines])
    assert list(found.target) == [line[-1].strip() for line in lines]


@hypothesis.settings(max_examples=200)
@hypothesis.given(strategies.cells)
def test_a_written_cell_is_printable_and_no_formula(text):
    (_, (first, second)) = csv.reader(as_csv([{"a": text, "b": 1}]).splitlines())
    assert first in (printable(text), f"'{printable(text)}")
    assert not first.startswith(("=", "@"))
    assert second == "1"
