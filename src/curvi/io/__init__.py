"""Files: save and load what was computed, never with pickle."""

from curvi.io._objects import load
from curvi.io._values import NotStored

__all__ = ["NotStored", "load"]
