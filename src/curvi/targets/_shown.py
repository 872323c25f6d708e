"""What a target tells of itself in a terminal and in a notebook."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from curvi.report import notebook_html

_MOST = 8  # arrays that are listed


class Described:
    """A target as one line, and as a small table."""

    def __repr__(self: Any) -> str:
        rows = f", {self.num_rows:,} rows" if self.rows is not None else ""
        shapes = ", ".join(f"{name} {shape}" for name, shape in _arrays(self.position)[:_MOST])
        more = ", ..." if len(_arrays(self.position)) > _MOST else ""
        return f"{type(self).__name__}({self.dimension} parameters: {shapes}{more}{rows})"

    def _repr_html_(self: Any) -> str:
        """Arrays, rows and precision, for a notebook."""
        facts = {"parameters": f"{self.dimension:,}", "precision": str(np.dtype(self.dtype))}
        if self.rows is not None:
            facts["rows"] = f"{self.num_rows:,}"
        if self.constrain is not None:
            facts["space"] = "constrained: results are in the space of the model"
        if self.labels is not None and self.labels.observed:
            facts["observed"] = ", ".join(map(str, self.labels.observed))
        table = [("array", "shape"), *_arrays(self.position)[:_MOST]]
        return notebook_html(type(self).__name__, facts, table=table)


def _arrays(position: Any) -> list[tuple[str, str]]:
    """Names and shapes of the arrays of a position."""
    paths, _ = jax.tree_util.tree_flatten_with_path(position)
    return [
        (jax.tree_util.keystr(path, simple=True, separator=".") or "x", str(np.shape(leaf)))
        for path, leaf in paths
    ]
