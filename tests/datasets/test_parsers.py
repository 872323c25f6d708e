"""Each format is read as it is meant, and each kind of damage is refused by name and place."""

from __future__ import annotations

import gzip
import struct
import time
import zlib

import numpy as np
import pytest
from scipy.sparse import csc_array

from curvi._core.errors import CurviError
from curvi.datasets import _content as content
from curvi.datasets import _libsvm as libsvm
from curvi.datasets._content import DataFormatError, digest, inflate, read_content
from curvi.datasets._golub import parse_intensities, parse_labels, standardise
from curvi.datasets._images import parse_idx, parse_mat
from curvi.datasets._libsvm import parse_libsvm
from tests.datasets import toys

pytestmark = pytest.mark.float64_only


def refusal_of(parse, *arguments, **choices):
    with pytest.raises(DataFormatError) as caught:
        parse(*arguments, **choices)
    message = str(caught.value)
    assert message.startswith("toy")
    assert "; " in message, "the message must say what to do"
    assert isinstance(caught.value, CurviError)
    return message


def test_libsvm_text_is_read_as_it_is_written():
    X, y = parse_libsvm(toys.LIBSVM, "toy", **toys.LIBSVM_SHAPE)
    np.testing.assert_array_equal(X, [[0.5, 0, -2.25], [0, 0.1, 4], [0, 0, 0], [7, 0.5, 1]])
    np.testing.assert_array_equal(y, [1, -1, -1, 1])
    assert X.dtype == np.float64
    assert y.dtype == np.int64


@pytest.mark.parametrize("end", [b"\r\n", b" \n", b"\t \r\n"])
def test_line_ends_and_spaces_do_not_change_libsvm_rows(end):
    plain = parse_libsvm(toys.LIBSVM, "toy", **toys.LIBSVM_SHAPE)
    other = parse_libsvm(toys.LIBSVM.replace(b"\n", end), "toy", **toys.LIBSVM_SHAPE)
    assert digest(plain) == digest(other)


def test_an_explicit_or_negative_zero_is_a_zero():
    choices = {"num_rows": 1, "num_features": 2}
    plain = parse_libsvm(b"1 1:2", "toy", **choices)
    assert digest(plain) == digest(parse_libsvm(b"1 1:2 2:-0.0", "toy", **choices))


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (b"1 1:1\n1 0:1\n", "line 2", "index 0 is outside 1 to 3"),
        (b"1 1:1\n1 4:1\n", "line 2", "index 4 is outside 1 to 3"),
        (b"1 1:1\n1 999999999:1\n", "line 2", "index 999999999 is outside"),
        (b"1 1:1\n1 99999999999999999999:1\n", "line 2", "word 2 is not index:value"),
        (b"1 -1:1\n1 1:1\n", "line 1", "word 2 is not index:value"),
        (b"1 2:1 1:1\n1 1:1\n", "line 1", "index 1 follows 2"),
        (b"1 1:1\n1 2:1 2:1\n", "line 2", "index 2 follows 2"),
        (b"1 1:1\n1 2:one\n", "line 2", "word 2 is not index:value"),
        (b"1 1:nan\n1 2:1\n", "line 1", "word 2 is not index:value"),
        (b"1 1:0x1\n1 2:1\n", "line 1", "word 2 is not index:value"),
        (b"1 1:1_0\n1 2:1\n", "line 1", "word 2 is not index:value"),
        (b"1 1:1e999\n1 2:1\n", "line 1", "the value of index 1 is too large"),
        (b"1 1:" + b"1" * 41 + b"\n1 2:1\n", "line 1", "is not index:value"),
        (b"1 1:\n1 2:1\n", "line 1", "word 2 is not index:value"),
        (b"1 1:1:1\n1 2:1\n", "line 1", "word 2 is not index:value"),
        (b"1 1:1 # remark\n1 2:1\n", "line 1", "word 3 is not index:value"),
        (b"1 qid:1 1:1\n1 2:1\n", "line 1", "word 2 is not index:value"),
        (b"1 1:1\n\n", "line 2", "is empty"),
        (b"1 1:1\nyes 1:1\n", "line 2", "the label is not a number"),
        (b"1 1:1\n1:1\n", "line 2", "the label is not a number"),
        (b"1 1:1\n2 1:1\n", "line 2", "the label 2 is neither -1 nor +1"),
        (b"1 1:1\n1e999 1:1\n", "line 2", "the label inf is neither"),
        (b"1 1:1\x0b2:1\n1 1:1\n", "line 1", "characters other than"),
        (b"1 1:1\x00\n1 1:1\n", "line 1", "is not index:value"),
        (b"1 1:1 \xc3\xa9\n1 1:1\n", "line 1", "word 3 is not index:value"),
        (b"1 1:1\n", "line 1", "the file ends after 1 rows of 2"),
        (b"", "line 0", "the file ends after 0 rows of 2"),
        (b"1 1:1\n1 1:1\n1 1:1\n", "line 3", "more rows than the 2 expected"),
    ],
)
def test_bad_libsvm_text_is_refused_at_its_line(text, where, what):
    message = refusal_of(parse_libsvm, text, "toy", num_rows=2, num_features=3)
    assert f"toy, {where}: " in message
    assert what in message


def test_an_endless_line_is_refused():
    text = b"1 " + b" " * libsvm.MAX_LINE
    assert "longer than" in refusal_of(parse_libsvm, text, "toy", num_rows=1, num_features=3)


@pytest.mark.parametrize(
    "text",
    [b"1" * 10**6, b"1 " * 500_000 + b"x", b"1" + b" 1:1" * 250_000 + b"x", b"\n" * 10**7],
)
def test_hostile_text_is_refused_in_linear_time(text):
    start = time.perf_counter()
    refusal_of(parse_libsvm, text, "toy", num_rows=2, num_features=3)
    assert time.perf_counter() - start < 5


def test_idx_is_read_as_it_is_written():
    (array,) = parse_idx(toys.idx(toys.GREY), "toy", shape=(3, 4))
    np.testing.assert_array_equal(array, toys.GREY)


@pytest.mark.parametrize(
    ("data", "where", "what"),
    [
        (b"", "byte 0", "the magic number is not 00 00 08 02"),
        (b"\x00\x00\x08", "byte 0", "the magic number is not 00 00 08 02"),
        (toys.idx(toys.GREY.ravel()), "byte 0", "the magic number is not 00 00 08 02"),
        (b"\x00\x00\x0d" + toys.idx(toys.GREY)[3:], "byte 0", "the magic number is not"),
        (toys.idx(toys.GREY)[:10], "byte 10", "the header of 12 bytes ends early"),
        (toys.idx(toys.GREY.T), "byte 4", "gives axis 0 the size 4, not 3"),
        (toys.idx(toys.GREY[:, :3]), "byte 8", "gives axis 1 the size 3, not 4"),
        (toys.idx(toys.GREY)[:-1], "byte 23", "the data end after 11 of 12 bytes"),
        (toys.idx(toys.GREY) + b"xy", "byte 24", "2 bytes follow the data"),
    ],
)
def test_bad_idx_is_refused_at_its_byte(data, where, what):
    message = refusal_of(parse_idx, data, "toy", shape=(3, 4))
    assert f"toy, {where}: " in message
    assert what in message


def test_a_header_that_claims_a_huge_size_allocates_nothing():
    data = bytes([0, 0, 8, 2]) + struct.pack(">2I", 2**32 - 1, 2**32 - 1)
    assert "4294967295" in refusal_of(parse_idx, data, "toy", shape=(3, 4))


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64, np.int16])
def test_a_matrix_of_a_mat_file_is_found_among_others(compress, dtype):
    data = toys.mat(compress=compress, p=np.eye(2), faces=toys.GREY.astype(dtype), u="text")
    (array,) = parse_mat(data, "toy", variable="faces", shape=(3, 4))
    np.testing.assert_array_equal(array, toys.GREY)
    assert array.dtype == np.uint8


def big_endian_mat(*, name_type=1, data_type=2, shape=(3, 4), data=None):
    def element(kind, body):
        return struct.pack(">II", kind, len(body)) + body + b"\x00" * (-len(body) % 8)

    parts = [
        element(6, struct.pack(">II", 9, 0)),  # class uint8
        element(5, struct.pack(">ii", *shape)),
        element(name_type, b"faces"),
        element(data_type, toys.GREY.tobytes(order="F") if data is None else data),
    ]
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\x01\x00MI" + element(14, b"".join(parts))


def test_a_big_endian_mat_file_is_read():
    (array,) = parse_mat(big_endian_mat(), "toy", variable="faces", shape=(3, 4))
    np.testing.assert_array_equal(array, toys.GREY)


def with_element(kind, body):
    return toys.mat()[:128] + struct.pack("<II", kind, len(body)) + body


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "not the header of a MATLAB 5 file"),
        (toys.mat()[:100], "not the header of a MATLAB 5 file"),
        (toys.mat()[:124] + b"\x00\x02IM" + toys.mat()[128:], "not the header of a MATLAB 5"),
        (b"\x89HDF\r\n\x1a\n" + bytes(1000), "not the header of a MATLAB 5 file"),
        (toys.mat()[:132], "byte 128: ends inside the head of an element"),
        (toys.mat()[:-8], "byte 128: an element of"),
        (toys.mat(compress=True)[:-3], "byte 128: an element of"),
        (toys.mat()[:128], "the variable 'faces' is there 0 times, among 0"),
        (toys.mat(other=toys.GREY), "the variable 'faces' is there 0 times, among 1"),
        (toys.mat() + toys.mat()[128:], "the variable 'faces' is there 2 times"),
        (toys.mat(faces=toys.GREY.T), "faces has the shape (4, 3), not (3, 4)"),
        (toys.mat(faces=toys.GREY.reshape(3, 2, 2)), "faces has the shape (3, 2, 2)"),
        (toys.mat(faces="text"), "faces is not a full matrix of real numbers"),
        (toys.mat(faces={"a": 1}), "faces is not a full matrix of real numbers"),
        (toys.mat(faces=csc_array(toys.GREY)), "faces is not a full matrix of real numbers"),
        (toys.mat(faces=toys.GREY > 9), "faces is not a full matrix of real numbers"),
        (toys.mat(faces=toys.GREY * 1j), "faces is not a full matrix of real numbers"),
        (toys.mat(faces=toys.GREY * np.nan), "faces[0, 0] is nan"),
        (toys.mat(faces=toys.GREY + np.inf), "faces[0, 0] is inf"),
        (toys.mat(faces=toys.GREY + 0.5), "faces[0, 0] is 0.5"),
        (toys.mat(faces=toys.GREY - 1.0), "faces[0, 0] is -1"),
        (toys.mat(faces=toys.GREY.astype(int) * 2), "faces[1, 3] is 280"),
        (with_element(9, bytes(8)), "element of type 9 where a variable belongs"),
        (with_element(15, b"oops"), "cannot be decompressed"),
        (with_element(15, zlib.compress(toys.mat()[128:])[:-6]), "ends inside compressed"),
        (with_element(15, zlib.compress(b"abc")), "ends inside the head of an element"),
        (with_element(15, zlib.compress(toys.mat()[128:-8])), "an element of 72 bytes ends"),
        (with_element(15, zlib.compress(toys.mat()[128:] + b"x")), "longer than it states"),
        (with_element(15, zlib.compress(bytes(10**6))), "decompresses to more than"),
        (toys.mat()[:128] + toys.mat(a=1)[128:] * 65, "more than 64 variables"),
        (with_element(14, bytes(16)), "does not begin with its flags"),
        (with_element(14, struct.pack("<4I", 6, 8, 9, 0)), "ends inside the head"),
        (with_element(14, struct.pack("<6I", 6, 8, 9, 0, 5, 0)), "no proper dimensions"),
        (big_endian_mat(name_type=9), "no proper name"),
        (big_endian_mat(data_type=14), "faces is not a full matrix of real numbers"),
        (big_endian_mat(data_type=0x7FFF), "faces is not a full matrix of real numbers"),
        (big_endian_mat(data_type=9), "faces has 12 bytes, not 12 times 8"),
        (big_endian_mat(data=toys.GREY.tobytes()[:-1]), "faces has 11 bytes, not 12 times 1"),
        (big_endian_mat(data=b""), "faces has 0 bytes, not 12 times 1"),
        (big_endian_mat(shape=(2**31 - 1, 2**31 - 1)), "faces has the shape (2147483647, 2"),
        (big_endian_mat(shape=(-3, -4)), "faces has the shape (-3, -4)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_mat_file_is_refused(data, what):
    choices = {"variable": "faces", "shape": (3, 4), "max_bytes": 10_000}
    assert what in refusal_of(parse_mat, data, "toy", **choices)


def test_a_matlab_object_beside_the_matrix_is_skipped():
    opaque = struct.pack("<6I", 14, 16, 6, 8, 17, 0)
    data = toys.mat()[:128] + opaque + toys.mat()[128:]
    (array,) = parse_mat(data, "toy", variable="faces", shape=(3, 4))
    np.testing.assert_array_equal(array, toys.GREY)


def test_intensities_are_read_with_patients_in_order():
    values, genes = parse_intensities(toys.INTENSITIES, "toy", **toys.INTENSITIES_SHAPE)
    np.testing.assert_array_equal(values, [[12, 30000], [-7, 0]])
    assert genes.tolist() == ["G1_at", "G2_at"]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b",3,call", b",4,call", "line 1: does not number the patients 2 to 3"),
        (b",3,call", b",2,call", "line 1: does not number the patients"),
        (b"2,call\r", b"2,what\r", "line 1: does not number the patients"),
        (b",2,call\r", b",2\r", "line 1: does not number the patients"),
        (b",-7,A", b",-7", "line 2: has 5 fields, not 6"),
        (b"-7", b"-7.5", "line 2: field 3 is not an intensity"),
        (b"30000", b"300000000", "line 3: field 5 is not an intensity"),
        (b"-7,A", b"-7,B", "line 2: field 4 is not an intensity, call"),
        (b"G1_at", b"", "line 2: field 2 is not an intensity, call or accession number"),
        (b"G1_at", b"G2_at", "an accession number occurs more than once"),
        (b'""quoted""', b'""quoted" x', "line 2: is not comma-separated text"),
        (b"another", b"x" * 5000, "line 3: is longer than 4096 characters"),
        (b"another", b"\xe9", "byte 92: is not plain text"),
        (b"another,G2_at,0,M,30000,A\r\n", b"", "line 2: the file has 2 lines, not 3"),
        (b"another", b"x\ny", "line 4: the file has 4 lines, not 3"),
    ],
)
def test_bad_intensities_are_refused_at_their_line(old, new, what):
    data = toys.INTENSITIES.replace(old, new, 1)
    assert data != toys.INTENSITIES
    assert what in refusal_of(parse_intensities, data, "toy", **toys.INTENSITIES_SHAPE)


def test_labels_are_read_in_the_order_of_the_patients():
    (labels,) = parse_labels(toys.LABELS, "toy", num_patients=3)
    assert labels.tolist() == [1, -1, 1]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b"cancer", b"age", "line 1: does not read patient,cancer"),
        (b"2,AML", b"2,XYZ", "line 2: does not hold a patient and ALL or AML"),
        (b"2,AML", b"two,AML", "line 2: does not hold a patient and ALL or AML"),
        (b"2,AML", b"2,AML,3", "line 2: does not hold a patient and ALL or AML"),
        (b"2,AML", b"0,AML", "line 2: patient 0 is repeated or outside 1 to 3"),
        (b"1,ALL", b"2,ALL", "line 3: patient 2 is repeated"),
        (b"1,ALL\n", b"", "line 3: the file has 3 lines, not 4"),
    ],
)
def test_bad_labels_are_refused_at_their_line(old, new, what):
    data = toys.LABELS.replace(old, new, 1)
    assert what in refusal_of(parse_labels, data, "toy", num_patients=3)


def test_standardising_learns_from_the_reference_rows_only(key):
    rng = toys.generator(key)
    train, test = rng.normal(2, 3, (8, 5)), rng.normal(-1, 2, (4, 5))
    z, z_test = standardise(train, test)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(z.std(axis=0, ddof=1), 1)
    again, first = standardise(train, test[:1])
    np.testing.assert_array_equal(again, z)
    np.testing.assert_allclose(first, z_test[:1])
    np.testing.assert_allclose(standardise(3 * train + 1)[0], z)


@pytest.mark.parametrize("packer", toys.PACKERS)
def test_compression_is_recognised_by_content(packer):
    packed = toys.PACKERS[packer](toys.LIBSVM)
    assert inflate(packed, "toy") == toys.LIBSVM
    assert inflate(packed, "toy", max_bytes=len(toys.LIBSVM)) == toys.LIBSVM


@pytest.mark.parametrize("packer", ["gzip", "bzip2"])
def test_several_compressed_streams_are_one_file(packer):
    pack = toys.PACKERS[packer]
    assert inflate(pack(b"one ") + pack(b"two"), "toy") == b"one two"


@pytest.mark.parametrize("packer", ["gzip", "bzip2"])
def test_bad_compression_is_refused(packer):
    pack = toys.PACKERS[packer]
    packed = pack(toys.LIBSVM)
    assert "ends inside compressed data" in refusal_of(inflate, packed[:-5], "toy")
    assert f"byte {len(packed)}: bytes follow" in refusal_of(inflate, packed + b"x", "toy")
    wrong = packed[:20] + bytes([packed[20] ^ 255]) + packed[21:]
    assert "toy, byte " in refusal_of(inflate, wrong, "toy")
    assert "more than 64 compressed streams" in refusal_of(inflate, pack(b"") * 65, "toy")


@pytest.mark.parametrize("packer", ["gzip", "bzip2"])
def test_a_bomb_is_refused_before_it_unfolds(packer):
    pack = toys.PACKERS[packer]
    what = "decompresses to more than 1000 bytes"
    assert what in refusal_of(inflate, pack(bytes(10**6)), "toy", max_bytes=1000)
    assert what in refusal_of(inflate, pack(bytes(600)) * 2, "toy", max_bytes=1000)
    assert what in refusal_of(inflate, pack(bytes(1001)), "toy", max_bytes=1000)


@pytest.mark.parametrize("packer", ["gzip", "bzip2"])
def test_a_small_file_of_millions_of_equal_rows_is_refused_and_an_honest_one_is_read(packer):
    pack, rows = toys.PACKERS[packer], b"a,y\n" + b"1,0\n2,1\n" * 700_000
    assert "grows more than 200 times" in refusal_of(inflate, pack(rows), "toy")
    rng = np.random.default_rng(0)
    honest = b"".join(b"%d,1\n" % n for n in rng.integers(0, 99, 1_200_000))
    assert inflate(pack(honest), "toy") == honest


def test_the_bound_holds_for_a_file(tmp_path):
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(bytes(content.MAX_BYTES + 1), 1))
    assert "decompresses to more than" in refusal_of(read_content, bomb, "toy")
    assert "is larger than 1000 bytes" in refusal_of(read_content, bomb, "toy", max_bytes=1000)


@pytest.mark.parametrize("magic", [b"PK\x03\x04", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"])
def test_another_compression_is_named(magic):
    assert "unpack it" in refusal_of(inflate, magic + bytes(20), "toy")


def test_a_file_that_cannot_be_opened_is_refused(tmp_path):
    assert "cannot be read" in refusal_of(read_content, tmp_path / "absent", "toy")


def test_the_digest_sees_values_shapes_and_types_but_not_byte_order():
    array = np.arange(6)
    assert digest([array]) == digest([array.astype(">i8")])
    others = [array.reshape(2, 3), array.astype(np.int32), array + 1, array[:5]]
    assert len({digest([other]) for other in [array, *others]}) == 5
