"""Hostile tables on the command line: each ends in one sentence, or in a fit of what is there."""

import csv
import gzip
import io
import json

import numpy as np
import pytest

import curvi
from curvi._core.errors import InputError
from curvi.cli._table import fit_table, responses
from curvi.datasets import DataFormatError, Table
from curvi.datasets._content import inflate
from curvi.datasets._table import parse_table
from curvi.paper.experiments._figures import as_csv
from tests.adversarial.commands import Refusal, command
from tests.adversarial.outcomes import handled, refused

pytestmark = pytest.mark.float64_only

NUMBERS = "\n".join(f"{x},{'yes' if x > 4 else 'no'}" for x in range(10))
GOOD = f"a,y\n{NUMBERS}\n".encode()
LONG = "n" * 50_000

REFUSED = {
    "empty file": (b"", "is empty"),
    "blank lines only": (b"\n\n\n", "line 1"),
    "header only": (b"a,y\n", "no rows"),
    "header without a line end": (b"a,y", "no rows"),
    "duplicate names": (b"a,a,y\n1,2,3\n", "two columns are called 'a'"),
    "names that are printed alike": (b"\x1b,\\x1b,y\n1,2,3\n", "two columns are called"),
    "short row": (b"a,y\n1\n", "line 2"),
    "long row": (b"a,y\n1,2,3\n", "line 2"),
    "zero byte": (b"a,y\n1\0,2\n", "byte 5"),
    "UTF-16": ("a,y\n1,2\n".encode("utf-16"), "UTF-8"),
    "latin-1": (b"caf\xe9,y\n1,2\n", "byte 3"),
    "field beyond the limit": (b"a,y\n" + b"1" * 140_000 + b",2\n", "line 2"),
    "unterminated quote": (b'a,y\n1,"2\n3,4\n', "not valid CSV"),
    "text after a quote": (b'a,y\n1,"2"x\n', "not valid CSV"),
    "text cell": (b"a,y\n1,2\nred,3\n", "line 3, column 'a': 'red'"),
    "nan": (b"a,y\n1,2\nnan,3\n", "line 3, column 'a'"),
    "inf": (b"a,y\n1,2\n-INF,3\n", "line 3, column 'a'"),
    "overflow": (b"a,y\n1,2\n1e400,3\n", "overflows"),
    "missing target cell": (b"a,y\n1,\n", "column 'y'"),
    "no column for the target": (b"a,b\n1,2\n", "--target is 'y'"),
    "only the target": (b"y,y2\n", "no rows"),
    "broken gzip": (gzip.compress(GOOD)[:-9], "ends inside compressed data"),
    "damaged gzip": (gzip.compress(GOOD)[:-8] + bytes(8), "cannot be decompressed"),
    "bytes after gzip": (gzip.compress(GOOD) + b"more", "bytes follow"),
    "zip": (b"PK\x03\x04" + bytes(30), "zip archive"),
    "one value in the target": (b"a,y\n1,no\n2,no\n3,no\n", "nothing to explain"),
    "one row": (b"a,y\n1,2.5\n", "nothing to explain"),
    "too many texts": (b"a,y\n" + b"".join(b"1,t%d\n" % i for i in range(200)), "can be classes"),
    "one number in two spellings": (b"a,y\n1,01\n2,1\n3,2\n", "'01' and '1'"),
    "reals in two spellings": (b"a,y\n1,2.5\n2,2.50\n", "'2.5' and '2.50'"),
    "a sign more": (b"a,y\n1,+1\n2,1\n", "equal as numbers"),
}


@pytest.mark.parametrize(("content", "words"), REFUSED.values(), ids=REFUSED)
def test_a_hostile_table_is_refused_in_one_sentence(tmp_path, content, words):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    refused(lambda: command("fit", str(path), "--target", "y"), Refusal, words)


HANDLED = {
    "byte-order mark": b"\xef\xbb\xbf" + GOOD,
    "CRLF": GOOD.replace(b"\n", b"\r\n"),
    "CR": GOOD.replace(b"\n", b"\r"),
    "no final line end": GOOD.rstrip(),
    "blank lines at the end": GOOD + b"\n\r\n\n",
    "gzip": gzip.compress(GOOD),
    "quoted cells": b'"a","y"\n' + NUMBERS.encode() + b"\n",
    "spaces": b" a , y \n" + NUMBERS.encode() + b"\n",
    "a long name": LONG.encode() + GOOD[1:],
}


@pytest.mark.parametrize("content", HANDLED.values(), ids=HANDLED)
def test_an_odd_but_plain_table_is_read_as_it_is(content):
    table = handled(
        lambda: parse_table(inflate(content, "toy"), "toy", "y"), lambda t: t.X.shape == (10, 1)
    )
    np.testing.assert_array_equal(table.X.ravel(), np.arange(10.0))
    assert table.names[0] in ("a", LONG)
    assert table.target == ("no",) * 5 + ("yes",) * 5


def test_a_target_among_the_ignored_columns_is_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes(GOOD)
    arguments = ["fit", str(tmp_path / "t.csv"), "--target", "y", "--ignore", "y"]
    refused(lambda: command(*arguments), Refusal, "--ignore has the target 'y'")


def test_a_column_of_one_value_keeps_its_prior():
    X = np.column_stack([np.arange(10.0), np.full(10, 7.0)])
    table = Table(X, ("a", "constant"), ("no",) * 5 + ("yes",) * 5)
    options = {"target": "y", "model": "logistic", "random_state": 0}
    handled(
        lambda: fit_table(table, **options).rows(),
        lambda rows: abs(float(rows[1]["mean"])) < 1e-9 and float(rows[1]["sd"]) > 0.9,
    )


LABELS = {
    "leading zeros": (("01", "10", "02"), ("01", "02", "10")),
    "numbers by value, not by text": (("10", "9", "9"), ("9", "10")),
    "reals": (("2.5", "10.5"), ("2.5", "10.5")),
    "signs": (("+1", "-1"), ("-1", "+1")),
    "text": (("b", "01", "1"), ("01", "1", "b")),
    "beyond float64's integers": (("9007199254740993", "1"), ("1", "9007199254740993")),
}


@pytest.mark.parametrize(("labels", "classes"), LABELS.values(), ids=LABELS)
def test_classes_keep_their_spelling_and_their_order(labels, classes):
    codes, found = handled(lambda: responses(labels, "y", "logistic"), lambda got: len(got) == 2)
    assert found == classes
    assert tuple(found[code] for code in codes) == labels


def test_two_spellings_of_a_number_are_no_two_classes():
    refused(lambda: responses(("1e0", "1"), "y", "logistic"), InputError, "'1'", "'1e0'")


HOSTILE = {
    "formula": "=cmd|' /C calc'!A0",
    "plus": "+1+cmd",
    "minus": "-2+3",
    "at": "@SUM(A1)",
    "terminal": "\x1b]0;title\x07\x1b[31mred",
    "right to left": "\u202egnp.exe",
    "markup": "<img src=x onerror=alert(1)>",
    "template": "{{ 7 * 7 }}",
    "mathtext": "$\\frac{",
    "intercept": "intercept",
    "lines": "one\ntwo",
    "line separator": "one\u2028two",
}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report on a table of hostile names, and what was printed about it."""
    folder = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(0)
    rows = [[*HOSTILE.values(), "=y", "(intercept)"]]
    classes = ["=no", "\x1b[1myes", "x"]
    rows += [[*rng.normal(size=len(HOSTILE)), classes[i % 3], i % 7] for i in range(40)]
    stream = io.StringIO()
    csv.writer(stream).writerows(rows)
    (folder / "t.csv").write_text(stream.getvalue())
    arguments = ["fit", str(folder / "t.csv"), "--target", "=y", "--out", str(folder)]
    return folder, handled(
        lambda: command(*arguments), lambda said: "The numbers can be used" in said
    )


def test_hostile_names_reach_neither_terminal_nor_spreadsheet_nor_page(report):
    folder, printed = report
    page = (folder / "report.html").read_text()
    for text in (printed, page, (folder / "coefficients.csv").read_text()):
        assert not set("\x1b\x07\u202e\u2028") & set(text)
    assert "<img src=x" not in page
    assert "{{ 7 * 7 }}" in page
    rows = list(csv.DictReader((folder / "coefficients.csv").read_text().splitlines()))
    for row in rows:
        assert row["name"][0] not in "=+-@"
        assert row["class"][0] not in "=+-@"
        assert np.isfinite([float(row["mean"]), float(row["sd"])]).all()
    assert any(row["mean"].startswith("-") for row in rows)  # numbers stay numbers
    names = [row["name"] for row in rows[: len(HOSTILE) + 2]]
    assert len(set(names)) == len(names)
    assert names[-3:-1] == ["one\\u2028two", "(intercept)"]
    assert names[-1] == "((intercept))"
    json.loads((folder / "config.json").read_text())


CELLS = {"=1": "'=1", "+x": "'+x", "-x": "'-x", "@x": "'@x", "\uff1d1": "'\uff1d1", "=a,b": "'=a,b",
         "\t=1": "\\t=1", "\r=1": "\\r=1", "\n@x": "\\n@x"}  # fmt: skip


@pytest.mark.parametrize(("cell", "inert"), CELLS.items(), ids=map(repr, CELLS))
def test_a_cell_that_a_spreadsheet_would_run_is_text(cell, inert):
    found = handled(lambda: as_csv([{"a": cell}]), lambda text: text.isascii() or cell > "~")
    assert list(csv.reader(found.splitlines())) == [["a"], [inert]]


@pytest.mark.parametrize("cell", ["-1.5", "+2", "-inf", -3, -0.5, "a=b", ""])
def test_a_number_or_plain_text_is_written_as_it_is(cell):
    handled(lambda: as_csv([{"a": cell, "b": 1}]), lambda text: text == f"a,b\n{cell},1\n")


def test_a_table_beyond_the_memory_budget_is_refused_before_it_is_parsed():
    def read():
        with curvi.memory_budget("1 KiB"):
            parse_table(GOOD * 10, "toy", "y")

    refused(read, curvi.MemoryBudgetError, "the table in toy", "leave out rows")


def test_control_characters_in_messages_are_escaped():
    refused(
        lambda: parse_table(b"a,y\n\x1b[31m,2\n", "\x1b[2Jname", "y"), DataFormatError, "\\x1b[31m"
    )
    with pytest.raises(InputError) as caught:
        parse_table(b"a,\x1b[31mb\n1,2\n", "\x1b[2Jname", "y\u202e")
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()
