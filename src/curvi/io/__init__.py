"""Files: save and load what was computed, never with pickle; rows beyond memory in blocks."""

from curvi.io._claims import NotStored
from curvi.io._claims import require_claims as require_claims
from curvi.io._claims import require_described as require_described
from curvi.io._claims import require_like as require_like
from curvi.io._format import FORMAT as FORMAT
from curvi.io._format import read_file as read_file
from curvi.io._format import write_file as write_file
from curvi.io._frames import frames
from curvi.io._objects import CHECKPOINT as CHECKPOINT
from curvi.io._objects import Saved as Saved
from curvi.io._objects import SavedEstimator as SavedEstimator
from curvi.io._objects import load
from curvi.io._objects import versions as versions
from curvi.io._passes import SameRows as SameRows
from curvi.io._passes import aligned as aligned
from curvi.io._passes import column_names as column_names
from curvi.io._rows import RowBlocks, rows
from curvi.io._streams import HostRows as HostRows
from curvi.io._streams import Stream as Stream
from curvi.io._streams import streamed as streamed
from curvi.io._values import CannotStoreError as CannotStoreError
from curvi.io._values import Decoder as Decoder
from curvi.io._values import Encoder as Encoder

__all__ = ["NotStored", "RowBlocks", "frames", "load", "rows"]
