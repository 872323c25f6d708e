"""One rule for every answer about a posterior: right, wrong, or silently wrong.

An answer is *right* if the worst mean is within 0.1 reference sds and every ratio of sds lies in
0.8 to 1.25. It is *silent* if it is not right and nobody said so: no exception, no warning, no
verdict of the library.
"""

from __future__ import annotations

from typing import Any

import numpy as np

RIGHT_MEAN, RIGHT_SD = 0.1, (0.8, 1.25)
Row = dict[str, Any]


def scored(mean: np.ndarray, sd: np.ndarray, problem: Any) -> Row:
    """Errors of means and sds in units of the reference, the worst quantities named."""
    off = np.abs(np.asarray(mean, float) - problem.mean) / problem.sd
    ratio = np.asarray(sd, float) / problem.sd
    if not (np.isfinite(off).all() and np.isfinite(ratio).all()):
        return {"mean_error": None, "sd_low": None, "sd_high": None, "right": False}
    low, high = int(ratio.argmin()), int(ratio.argmax())
    right = off.max() <= RIGHT_MEAN and ratio[low] >= RIGHT_SD[0] and ratio[high] <= RIGHT_SD[1]
    return {
        "mean_error": float(off.max()),
        "mean_error_average": float(off.mean()),
        "sd_low": float(ratio[low]),
        "sd_high": float(ratio[high]),
        "sd_error_average": float(np.abs(ratio - 1).mean()),
        "worst": [problem.labels[i] for i in (int(off.argmax()), low, high)],
        "right": bool(right),
    }


def is_silent(row: Row) -> bool:
    """Wrong, and nothing said so; a row without an answer has said so."""
    return "mean_error" in row and not row["right"] and not row["flagged"]


def line(name: str, who: str, row: Row) -> str:
    """One answer as a line of text."""
    if row.get("failed"):
        numbers = row["failed"][:70]
    elif row["mean_error"] is None:
        numbers = "no finite result"
    else:
        numbers = (
            f"mean {row['mean_error']:7.3f} sd, sds {row['sd_low']:.2f} to {row['sd_high']:.2f}"
        )
    word = "right" if row.get("right") else ("SILENT" if is_silent(row) else "wrong")
    flag = ", flagged" if row.get("flagged") else ""
    seconds = f"{row['seconds']:.1f} s" if row.get("seconds") is not None else "-"
    again = f", then {row['seconds_warm']:.1f} s" if row.get("seconds_warm") is not None else ""
    nuts = f", {row['of_nuts']:.2f} of NUTS" if row.get("of_nuts") is not None else ""
    rung = f" [{row['rung']}]" if row.get("rung") else ""
    return f"  {name:28s} {who:30s} {word + flag:15s} {numbers}  {seconds}{again}{nuts}{rung}"
