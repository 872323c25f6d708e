"""The columns that a model was fitted to, as plain data: text stays text, categories keep order."""

from __future__ import annotations

from typing import Any

import numpy as np

Stored = dict[str, Any]


def stored_columns(frame: Any) -> Stored:
    """Columns by name: arrays of numbers, or codes with their values."""
    import pandas as pd

    out: Stored = {}
    for name in frame.columns:
        column = frame[name]
        if isinstance(column.dtype, pd.CategoricalDtype):
            values = _plain(column.cat.categories)
            codes = column.cat.codes.to_numpy().astype(np.int64)
            out[str(name)] = {"codes": codes, "values": values, "ordered": bool(column.cat.ordered)}
        elif column.dtype.kind in "iufb":
            out[str(name)] = column.to_numpy()
        else:
            codes, found = pd.factorize(column, sort=True)
            plain = _plain(pd.Index(found).infer_objects())
            out[str(name)] = {"codes": codes.astype(np.int64), "values": plain, "ordered": None}
    return out


def _plain(values: Any) -> Any:
    """Numbers as an array, anything else as texts."""
    if values.dtype.kind in "iufb":
        return values.to_numpy()
    return [str(value) for value in values]


def joined_frames(known: Any, new: Any) -> Any:
    """Rows of two tables with the columns of the first; its categories keep their order."""
    import pandas as pd

    new = new[list(known.columns)].copy()
    known = known.copy()
    for name in known.columns:
        if isinstance(known[name].dtype, pd.CategoricalDtype):
            have = known[name].cat.categories
            more = [value for value in pd.unique(new[name].astype(object)) if value not in have]
            kind = pd.CategoricalDtype([*have, *more], known[name].cat.ordered)
            known[name], new[name] = known[name].astype(kind), new[name].astype(kind)
    return pd.concat([known, new], ignore_index=True)


def restored_frame(columns: Stored) -> Any:
    """The table again."""
    import pandas as pd

    out: dict[str, Any] = {}
    for name, column in columns.items():
        if not isinstance(column, dict):
            out[name] = np.asarray(column)
        elif column["ordered"] is None:
            out[name] = np.asarray(column["values"], object)[np.asarray(column["codes"])]
        else:
            out[name] = pd.Categorical.from_codes(
                np.asarray(column["codes"]), pd.Index(column["values"]), ordered=column["ordered"]
            )
    return pd.DataFrame(out)
