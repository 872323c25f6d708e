"""Named data sets: a local folder, a cache, a download; read by strict parsers."""

from curvi.datasets._cells import Cells as Cells
from curvi.datasets._cells import is_date as is_date
from curvi.datasets._cells import is_missing as is_missing
from curvi.datasets._cells import is_number as is_number
from curvi.datasets._cells import read_cells as read_cells
from curvi.datasets._cells import separator_of as separator_of
from curvi.datasets._content import DataFormatError, DataNotFoundError
from curvi.datasets._lookup import Listing, load, names, path
from curvi.datasets._registry import ENTRIES as ENTRIES
from curvi.datasets._registry import Dataset
from curvi.datasets._table import CellError as CellError
from curvi.datasets._table import Table, read_table
from curvi.datasets._table import chosen_columns as chosen_columns

__all__ = [
    "DataFormatError", "DataNotFoundError", "Dataset", "Listing", "Table", "load", "names", "path",
    "read_table",
]  # fmt: skip
