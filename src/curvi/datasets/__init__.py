"""Named data sets: a local folder, a cache, a download; read by strict parsers."""

from curvi.datasets.errors import DataFormatError, DataNotFoundError
from curvi.datasets.named import Dataset, Listing, load, names, path
from curvi.datasets.table import Table, read_table

__all__ = [
    "DataFormatError",
    "DataNotFoundError",
    "Dataset",
    "Listing",
    "Table",
    "load",
    "names",
    "path",
    "read_table",
]
