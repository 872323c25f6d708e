"""Files: save and load what was computed, never with pickle; rows beyond memory in blocks."""

from curvi.io._claims import NotStored
from curvi.io._frames import frames
from curvi.io._objects import load
from curvi.io._rows import RowBlocks, rows

__all__ = ["NotStored", "RowBlocks", "frames", "load", "rows"]
