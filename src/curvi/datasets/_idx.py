"""The IDX format of MNIST: a magic number, big-endian sizes, then unsigned bytes."""

from __future__ import annotations

import math

import numpy as np

from curvi.datasets._errors import refusal

_UNSIGNED_BYTE = 8


def parse_idx(content: bytes, name: str, *, shape: tuple[int, ...]) -> tuple[np.ndarray]:
    r"""An array of unsigned bytes of exactly the given shape.

    Raises
    ------
    DataFormatError
        The magic number is not ``0 0 8 len(shape)``, a size in the header is not that of
        `shape`, or the data are shorter or longer than the header says.

    Examples
    --------
    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "toy", shape=(3,))
    (array([7, 8, 9], dtype=uint8),)
    """
    magic = bytes([0, 0, _UNSIGNED_BYTE, len(shape)])
    start = 4 * (1 + len(shape))
    if content[:4] != magic:
        what = f"the magic number is {content[:4].hex(' ') or 'missing'}, not {magic.hex(' ')}"
        raise refusal(name, "byte 0", what)
    if len(content) < start:
        raise refusal(name, f"byte {len(content)}", f"the header of {start} bytes ends early")
    for axis, expected in enumerate(shape):
        offset = 4 * (1 + axis)
        size = int.from_bytes(content[offset : offset + 4], "big")
        if size != expected:
            what = f"the header gives axis {axis} the size {size}, not {expected}"
            raise refusal(name, f"byte {offset}", what)
    end = start + math.prod(shape)
    if len(content) < end:
        what = f"the data end after {len(content) - start} of {end - start} bytes"
        raise refusal(name, f"byte {len(content)}", what)
    if len(content) > end:
        raise refusal(name, f"byte {end}", f"{len(content) - end} bytes follow the data")
    return (np.frombuffer(content, np.uint8, offset=start).reshape(shape),)
