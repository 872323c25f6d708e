"""Named data sets: a local folder, a cache, a download; read by strict parsers."""

from curvi.datasets._content import DataFormatError, DataNotFoundError
from curvi.datasets._lookup import Listing, load, names, path
from curvi.datasets._registry import Dataset
from curvi.datasets._table import Table, read_table

__all__ = [
    "DataFormatError", "DataNotFoundError", "Dataset", "Listing", "Table", "load", "names", "path",
    "read_table",
]  # fmt: skip
