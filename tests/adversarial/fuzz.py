"""A coverage-guided fuzzer of parsers, in a page.

Copies of known inputs are damaged at random. Every few inputs the lines that the parser takes are
recorded, and an input that takes a new way joins the known ones, so that damage adds up until it
reaches what no single edit would. An input either parses or raises CurviError with one line of
text; anything else, or an input that takes seconds, fails.

Run as ``python -m tests.adversarial.fuzz 1000000`` it prints what each format got.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import curvi
from curvi._core.errors import CurviError
from curvi.cli._table import choose_model, responses
from curvi.datasets._content import inflate
from curvi.datasets._golub import parse_intensities, parse_labels
from curvi.datasets._images import parse_idx, parse_mat
from curvi.datasets._libsvm import parse_libsvm
from curvi.datasets._table import parse_table
from tests.datasets import toys

HOME = str(Path(curvi.__file__).parent)
INPUTS = 1_000_000  # of all formats together, in the slow suite
LONGEST = 4096  # bytes of an input
SLOWEST = 5.0  # seconds for one input; a machine may be busy, a parser may not
MOST_KNOWN = 1000
TRACED = 6  # one input in so many is traced, which costs several times as much
TOKENS = (
    b"", b"\n", b"\r\n", b"\r", b",", b";", b"\t", b'"', b'""', b"'", b" ", b"\0", b":", b"_",
    b"=cmd|x", b"+", b"-", b".", b"e", b"-0", b"01", b"1e999", b"1e-999", b"nan", b"inf", b"9" * 50,
    b"0x1", b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3\xa9", b"\xe2\x80\xae", b"\x1b[31m", b"\x1f\x8b",
    b"BZh9", b"PK\x03\x04", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x01",
)  # fmt: skip


@dataclass
class Found:
    """What became of the inputs of one format."""

    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    ways: set[tuple[CodeType, int, int]] = field(default_factory=set)
    messages: set[str] = field(default_factory=set)


def table(content: bytes) -> None:
    """All that ``curvi fit`` does with a table before the fit."""
    found = parse_table(inflate(content, "toy", max_bytes=10 * LONGEST), "toy", "y")
    assert found.X.shape == (len(found.target), len(found.names))
    model, _ = choose_model(found.target, "y")
    assert len(responses(found.target, "y", model)[0]) == len(found.target)


TABLE = b'a,"b, c",y\n1,2.5e-1,yes\n-3., .5 ,no\n"+4",1E3,"may ""be"""\n\n'
FORMATS: dict[str, tuple[Callable[[bytes], object], list[bytes]]] = {
    "table": (table, [TABLE, b"a;b\n1;2\n", toys.PACKERS["gzip"](TABLE), b"a,y\n1,1\n2,2\n3,3\n"]),
    "libsvm": (lambda c: parse_libsvm(c, "toy", **toys.LIBSVM_SHAPE), [toys.LIBSVM]),
    "idx": (lambda c: parse_idx(c, "toy", shape=(3, 4)), [toys.idx(toys.GREY)]),
    "mat": (
        lambda c: parse_mat(c, "toy", variable="faces", shape=(3, 4), max_bytes=10_000),
        [toys.mat(), toys.mat(compress=True), toys.mat(other=toys.GREY, faces=toys.GREY * 1.0)],
    ),
    "intensities": (
        lambda c: parse_intensities(c, "toy", **toys.INTENSITIES_SHAPE),
        [toys.INTENSITIES],
    ),
    "labels": (lambda c: parse_labels(c, "toy", num_patients=3), [toys.LABELS]),
    "compression": (
        lambda c: inflate(c, "toy", max_bytes=300),
        [pack(toys.LIBSVM) for pack in toys.PACKERS.values()],
    ),
}


def fuzz(name: str, count: int, seed: int) -> Found:
    """Run ``count`` inputs through the parser of a format."""
    parse, seeds = FORMATS[name]
    rng, found = random.Random(seed), Found()  # noqa: S311
    known = list(seeds)
    for data in known:
        attempt(parse, data, found)
        found.ways |= ways(parse, data)
    began = time.perf_counter()
    while found.inputs < count:
        data = damaged(rng, known)
        attempt(parse, data, found)
        if found.inputs % TRACED == 0 and (new := ways(parse, data) - found.ways):
            found.ways |= new
            known.append(data)
            if len(known) > MOST_KNOWN:
                known.pop(rng.randrange(len(seeds), len(known)))
    found.seconds = time.perf_counter() - began
    return found


def attempt(parse: Callable[[bytes], object], data: bytes, found: Found) -> None:
    """Run one input; any error but ours passes on, with the input in a note."""
    found.inputs += 1
    began = time.perf_counter()
    try:
        parse(data)
        found.accepted += 1
    except CurviError as error:
        message = str(error)
        assert message.isprintable(), f"{message!r} from {data!r}"
        assert len(message) < 2000, data
        found.messages.add(message[:20])
    except BaseException as error:
        error.add_note(f"input: {data!r}")
        raise
    assert time.perf_counter() - began < SLOWEST, data


def ways(parse: Callable[[bytes], object], data: bytes) -> set[tuple[CodeType, int, int]]:
    """The pairs of lines of curvi that follow each other while an input is parsed."""
    taken: set[tuple[CodeType, int, int]] = set()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        code, last = frame.f_code, 0
        if not code.co_filename.startswith(HOME):
            return None

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            taken.add((code, last, frame.f_lineno))
            last = frame.f_lineno
            return line

        return line

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        parse(data)
    except CurviError:
        pass
    finally:
        sys.settrace(before)
    return taken


def damaged(rng: random.Random, known: list[bytes]) -> bytes:
    """A known input with a few random edits; half the time one of the latest."""
    first = max(0, len(known) - 8) if rng.random() < 0.5 else 0
    copy = bytearray(known[rng.randrange(first, len(known))])
    for _ in range(1 << rng.randrange(4)):
        at = rng.randrange(len(copy) + 1)
        length = 1 << rng.randrange(6)
        match rng.randrange(8):
            case 0 if at < len(copy):
                copy[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(copy):
                copy[at] = rng.randrange(256)
            case 2:
                del copy[at : at + length]
            case 3:
                del copy[at:]
            case 4:
                copy[at:at] = copy[at : at + length] * rng.randrange(1, 4)
            case 5:
                other = known[rng.randrange(len(known))]
                copy[at:] = other[rng.randrange(len(other) + 1) :]
            case _:
                copy[at : at + rng.randrange(3)] = TOKENS[rng.randrange(len(TOKENS))]
    return bytes(copy[:LONGEST])


if __name__ == "__main__":
    total = int(sys.argv[1])
    for name in FORMATS:
        result = fuzz(name, total // len(FORMATS), seed=int(time.time()))
        sys.stdout.write(
            f"{name}: {result.inputs} inputs, {result.accepted} accepted, {len(result.ways)} ways, "
            f"{result.seconds:.0f} s\n"
        )
