"""The response of a formula as numbers, refused where the likelihood cannot give it."""

from __future__ import annotations

from typing import Any

import numpy as np

from curvi._core.errors import InputError
from curvi._core.text import quoted
from curvi.likelihoods import Likelihood
from curvi.mixed._checks import require_size
from curvi.mixed._formula import Responses
from curvi.mixed._table import label_of


def response_of(
    likelihood: Likelihood, found: Responses, column: Any, text: str, first: int = 0
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Responses and trials as numbers, and the two classes of a binary one.

    ``first`` is the number of the first row.
    """
    values = found.values
    classes: tuple[str, ...] = ()
    if likelihood.takes_trials:
        if found.kind != "proportion":
            raise InputError(
                f"the response of a {likelihood.name} model is proportion(successes, trials), not "
                f"{text}"
            )
        y, trials = values[:, 0].astype(np.float64), values[:, 1].astype(np.float64)
    elif found.kind == "categoric":
        if not likelihood.binary:
            raise InputError(
                f"the response {quoted(text)} holds text; a {likelihood.name} model needs numbers"
            )
        y, classes = _binary(column if column is not None else values, text)
        trials = np.ones(len(y))
    else:
        y = values.astype(np.float64).reshape(len(values), -1)
        if y.shape[1] != 1:
            raise InputError(
                f"the response {quoted(text)} has {y.shape[1]} columns; only binomial and "
                "beta-binomial models take proportion(successes, trials)"
            )
        y, trials = y[:, 0], np.ones(len(y))
        if likelihood.binary:
            y, classes = _binary(column if column is not None else y, text)
    bad = np.flatnonzero(~np.isfinite(y))
    if len(bad):
        raise InputError(f"the response {quoted(text)} is {y[bad[0]]} in row {first + bad[0]}")
    require_size(y, f"the response {quoted(text)}")
    likelihood.check(y, trials, text, first)
    return y, trials, classes


def require_variation(likelihood: Likelihood, low: float, high: float, text: str) -> None:
    """Refuse a response that is the same in every row, where its spread is the unit of all else."""
    if likelihood.location_scale and low == high:
        raise InputError(f"the response {quoted(text)} is {low:g} in every row; nothing varies")


def _binary(column: Any, text: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """The second of two classes, in sorted order, is a success."""
    classes, codes = np.unique(np.asarray(column), return_inverse=True)
    if len(classes) != 2:
        raise InputError(
            f"the response {quoted(text)} has {len(classes)} different values "
            f"({', '.join([*map(str, classes[:5]), '...'][: len(classes)])}); "
            "a bernoulli model needs two"
        )
    return codes.astype(np.float64), (label_of(classes[0]), label_of(classes[1]))
