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
            values = [str(value) for value in column.cat.categories]
            codes = column.cat.codes.to_numpy().astype(np.int64)
            out[str(name)] = {"codes": codes, "values": values, "ordered": bool(column.cat.ordered)}
        elif column.dtype.kind in "iufb":
            out[str(name)] = column.to_numpy()
        else:
            codes, values = pd.factorize(column, sort=True)
            texts = [str(value) for value in values]
            out[str(name)] = {"codes": codes.astype(np.int64), "values": texts, "ordered": None}
    return out


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
                np.asarray(column["codes"]), column["values"], ordered=column["ordered"]
            )
    return pd.DataFrame(out)
