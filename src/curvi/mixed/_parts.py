"""A table that comes in parts: only what a formula names is kept, text as numbers of levels.

The largest factor is eliminated level by level, and the rows of a level may be in any part: a
likelihood without sufficient statistics needs all rows at once. So they are kept as compactly as
they can be, and the parts are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Any

import numpy as np

from curvi._core.errors import InputError
from curvi.mixed._table import as_frame, require_real


class _Texts:
    """A column of text: a number for each row, and the texts by number."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.codes: list[np.ndarray] = []
        self.kinds: list[Any] = []

    def add(self, column: Any) -> None:
        import pandas as pd

        self.kinds.append(column.dtype)
        codes, found = pd.factorize(column)
        new = np.asarray([self.known.setdefault(str(t), len(self.known)) for t in found], np.int32)
        self.codes.append(np.where(codes < 0, -1, new[codes]) if len(new) else codes)

    def column(self) -> Any:
        """Levels in the order of the categories, if all parts have these, or of their names."""
        import pandas as pd

        kind, names = self.kinds[0], sorted(self.known)
        if not isinstance(kind, pd.CategoricalDtype) or any(other != kind for other in self.kinds):
            kind = pd.CategoricalDtype(names)
        order = {str(name): code for code, name in enumerate(kind.categories)}
        place = np.asarray([*(order[name] for name in self.known), -1], np.int32)  # -1: missing
        return pd.Categorical.from_codes(place[np.concatenate(self.codes)], dtype=kind)


def collected(parts: Iterable[Any], names: Set[str]) -> Any:
    """The columns that are named, of all parts.

    Parameters
    ----------
    parts : iterable of DataFrames or dicts of columns
        They have the same columns.
    names : set of str
        What a formula may take from the table.

    Returns
    -------
    DataFrame

    Raises
    ------
    InputError
        If there is no part, or one has other columns, or text where another has numbers.
    """
    import pandas as pd

    numbers: dict[str, list[np.ndarray]] = {}
    texts: dict[str, _Texts] = {}
    order: list[str] = []
    for frame, numeric in agreeing(parts, names):
        order = [name for name in map(str, frame.columns) if name in names]
        for name in order:
            if name in numeric:
                numbers.setdefault(name, []).append(frame[name].to_numpy())
            else:
                texts.setdefault(name, _Texts()).add(frame[name])
    columns = {n: np.concatenate(numbers[n]) if n in numbers else texts[n].column() for n in order}
    return pd.DataFrame(columns)


def agreeing(parts: Iterable[Any], names: Set[str]) -> Iterator[tuple[Any, set[str]]]:
    """Tables one after another, and which of the named columns have numbers in all of them.

    Raises
    ------
    InputError
        As for `collected`.
    """
    order: list[str] | None = None
    numeric: set[str] = set()
    for index, part in enumerate(parts):
        if isinstance(part, tuple):  # of `curvi.io.rows`
            raise InputError("blocks of arrays have no columns; give curvi.io.frames(path)")
        frame = as_frame(part, may_be_empty=True)
        if not len(frame):  # nothing of it was chosen, and its columns have no kind
            continue
        used = [str(name) for name in frame.columns if str(name) in names]
        require_real(frame[used])
        kinds = {name for name in used if frame[name].dtype.kind in "biuf"}
        if order is None:
            order, numeric = used, kinds
        if used != order:
            raise InputError(f"part {index} has the columns {used}, the first has {order}")
        for name in used:
            if name in numeric and name not in kinds:
                raise InputError(f"column {name!r} has numbers at first, and text in part {index}")
            if name in kinds and name not in numeric and not frame[name].isna().all():
                raise InputError(
                    f"column {name!r} has text at first, and numbers in part {index}; read it "
                    f"as text everywhere, such as with dtype={{{name!r}: str}}"
                )
        yield frame, numeric
    if not order:
        raise InputError("the parts have no rows, or none of the columns of the formula")
