"""Functions that learn from the rows of a fit: centring, scaling, polynomials and splines.

Each learns plain numbers once and is applied by them to any rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.interpolate import BSpline

from curvi._core.errors import InputError

Memory = dict[str, Any]


@dataclass(frozen=True)
class Transform:
    """How a function learns from a column, with its options, and what it makes of one."""

    options: tuple[str, ...]
    learn: Callable[..., Memory]
    apply: Callable[[np.ndarray, Memory], np.ndarray]


def _learn_mean(x: np.ndarray) -> Memory:
    return {"mean": float(np.mean(x)), "sd": 1.0}


def _learn_scale(x: np.ndarray) -> Memory:
    return {"mean": float(np.mean(x)), "sd": float(np.std(x))}


def _standardise(x: np.ndarray, memory: Memory) -> np.ndarray:
    return (x - memory["mean"]) / memory["sd"]


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise InputError(f"{name} is {value!r}; write a whole number")
    return int(value)


def _learn_polynomial(x: np.ndarray, degree: Any = 1, raw: Any = False) -> Memory:
    """Shifts and squared norms of the three-term recurrence of orthogonal polynomials."""
    degree = _whole(degree, "degree")
    if degree < 1:
        raise InputError(f"degree of poly is {degree}; give at least 1")
    if raw:
        return {"degree": degree}
    if len(np.unique(x)) <= degree:
        raise InputError(f"poly of degree {degree} needs more than {degree} different values")
    centre = float(np.mean(x))
    away = x - centre  # what is far from zero keeps its digits
    before, here = np.zeros_like(x), np.ones_like(x)
    shifts, norms = [], [float(len(x))]
    for k in range(degree):
        shifts.append(float(away @ here**2 / norms[-1]))
        back = norms[-1] / norms[-2] if k else 0.0
        before, here = here, (away - shifts[-1]) * here - back * before
        norms.append(float(here @ here))
    if norms[-1] <= np.finfo(float).eps ** 2 * norms[0] * float(np.abs(away).max()) ** (2 * degree):
        raise InputError(f"poly of degree {degree} needs values that differ more evenly")
    return {"shifts": centre + np.array(shifts), "norms": np.array(norms)}


def _polynomial(x: np.ndarray, memory: Memory) -> np.ndarray:
    if "degree" in memory:
        return x[:, None] ** np.arange(1, memory["degree"] + 1)
    shifts, norms = memory["shifts"], memory["norms"]
    columns, before, here = [], np.zeros_like(x), np.ones_like(x)
    for k, shift in enumerate(shifts):
        back = norms[k] / norms[k - 1] if k else 0.0
        before, here = here, (x - shift) * here - back * before
        columns.append(here / np.sqrt(norms[k + 1]))
    return np.column_stack(columns)


def _learn_spline(
    x: np.ndarray, df: Any = None, degree: Any = 3, intercept: Any = False,
    lower_bound: Any = None, upper_bound: Any = None,
) -> Memory:  # fmt: skip
    """Knots at quantiles of the column."""
    degree = _whole(degree, "degree")
    inner = _whole(df, "df") - degree - bool(intercept)
    if inner < 0:
        raise InputError(f"df of bs is {df}; with degree={degree} give {int(df) - inner} or more")
    if not all(isinstance(end, int | float | None) for end in (lower_bound, upper_bound)):
        raise InputError(f"bs has bounds {lower_bound!r} and {upper_bound!r}; write numbers")
    low = float(np.min(x)) if lower_bound is None else float(lower_bound)
    high = float(np.max(x)) if upper_bound is None else float(upper_bound)
    knots = np.percentile(x, np.linspace(0, 100, inner + 2)[1:-1])
    if not low < high or np.any(knots < low) or np.any(knots > high):
        raise InputError(f"bs has bounds {low:g} and {high:g}, and knots that are not between them")
    ends = np.repeat([low, high], degree + 1)
    knots = np.sort(np.concatenate([ends, knots]))
    return {"knots": knots, "degree": degree, "first": 0 if intercept else 1}


def _spline(x: np.ndarray, memory: Memory) -> np.ndarray:
    knots, degree = memory["knots"], memory["degree"]
    basis = BSpline(knots, np.eye(len(knots) - degree - 1), degree)(x)
    return basis[:, memory["first"] :]


_SCALE = Transform((), _learn_scale, _standardise)
TRANSFORMS = {
    "center": Transform((), _learn_mean, _standardise),
    "scale": _SCALE,
    "standardize": _SCALE,
    "poly": Transform(("degree", "raw"), _learn_polynomial, _polynomial),
    "bs": Transform(
        ("df", "degree", "intercept", "lower_bound", "upper_bound"), _learn_spline, _spline
    ),
}
