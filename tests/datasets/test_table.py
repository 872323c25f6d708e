"""The reader of users' tables: what it accepts, what it refuses, and ten thousand damaged files."""

import gzip

import numpy as np
import pytest

from curvi._core.errors import InputError
from curvi.datasets import DataFormatError, read_table
from curvi.datasets._table import parse_table
from tests.datasets import toys

pytestmark = pytest.mark.float64_only

TOY = b'a,"b, quoted",y\n1,2.5e-1,yes\n-3., .5 ,no\n"+4",1E3,"may ""be"""\n\n'


def test_a_table_gives_numbers_names_and_the_target_as_written():
    table = parse_table(TOY, "toy", "y")
    np.testing.assert_array_equal(table.X, [[1, 0.25], [-3, 0.5], [4, 1000]])
    assert table.names == ("a", "b, quoted")
    assert table.target == ("yes", "no", 'may "be"')


def test_columns_can_be_left_out_and_the_target_stand_anywhere():
    table = parse_table(TOY, "toy", "a", ignore=("y",))
    assert table.names == ("b, quoted",)
    assert table.target == ("1", "-3.", "+4")


@pytest.mark.parametrize(("separator", "text"), [(";", b"a;y\n1;2\n"), ("\t", b"a\ty\n1\t2\n")])
def test_other_separators_are_read_when_named(separator, text):
    assert parse_table(text, "toy", "y", separator=separator).X.tolist() == [[1.0]]
    with pytest.raises(DataFormatError, match="is the separator really"):
        parse_table(text, "toy", "y")


def test_compression_a_byte_order_mark_and_carriage_returns_change_nothing(tmp_path):
    path = tmp_path / "table.csv.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + TOY.replace(b"\n", b"\r\n")))
    found, plain = read_table(path, "y"), parse_table(TOY, "toy", "y")
    np.testing.assert_array_equal(found.X, plain.X)
    assert found.names == plain.names
    assert found.target == plain.target


BAD = {
    "no bytes": (b"", "line 1: is empty"),
    "no header": (b"1,2\n3,4\n", "line 1: holds numbers only"),
    "no rows": (b"a,y\n", "no rows"),
    "one column": (b"y\n1\n", "one column"),
    "unnamed column": (b"a,,y\n1,2,3\n", "column 2 has no name"),
    "two of one name": (b"a,a,y\n1,2,3\n", "two columns are called 'a'"),
    "short line": (b"a,y\n1,2\n3\n", "line 3: has 1 cells"),
    "long line": (b"a,y\n1,2,3\n", "line 2: has 3 cells"),
    "empty line": (b"a,y\n1,2\n\n3,4\n", "line 3: is empty"),
    "empty cell": (b"a,y\n,2\n", "line 2, column 'a': is empty"),
    "empty target": (b"a,y\n1, \n", "line 2, column 'y': is empty"),
    "nan": (b"a,y\nnan,2\n", "is nan"),
    "infinity": (b"a,y\n-inf,2\n", "is -inf"),
    "overflow": (b"a,y\n1e999,2\n", "overflows"),
    "underscore": (b"a,y\n1_000,2\n", "is not a number"),
    "foreign digits": ("a,y\n\u0661,2\n".encode(), "is not a number"),
    "hexadecimal": (b"a,y\n0x10,2\n", "is not a number"),
    "open quote": (b'a,y\n"1,2\n', "not valid CSV"),
    "zero byte": (b"a,y\n1\0,2\n", "zero byte"),
    "other encoding": (b"a,y\n\xe9,2\n", "byte 4: is not UTF-8"),
    "huge cell": (b"a,y\n" + b"1" * 200_000 + b",2\n", "not valid CSV"),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_a_bad_table_is_refused_with_the_place(text, words):
    with pytest.raises(DataFormatError) as caught:
        parse_table(text, "toy", "y")
    assert words in str(caught.value)
    assert str(caught.value).startswith("toy")
    assert "; " in str(caught.value)


def test_damaged_tables_are_refused_or_finite_and_of_one_shape(key):
    messages, accepted = [], 0
    for copy in toys.damaged(toys.generator(key), TOY, 10_000):
        try:
            table = parse_table(copy, "toy", "y")
        except (DataFormatError, InputError) as error:
            messages.append(str(error))
            continue
        accepted += 1
        assert table.X.shape == (len(table.target), len(table.names))
        assert np.isfinite(table.X).all()
        assert all(table.target)
    assert len(messages) > 100
    assert [text for text in messages if "\n" in text] == []
    assert accepted > 100
