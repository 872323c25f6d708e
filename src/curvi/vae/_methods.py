"""The methods that an auto-encoder knows by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import optax

from curvi.solvers import KFAC, LBFGS, Averaged, FirstOrder, HessianFree, Method

METHODS: dict[str, Callable[[], Method]] = {
    "kfac": KFAC,
    "hessian_free": HessianFree,
    "lbfgs": lambda: LBFGS(history=10),
    "adam": lambda: Averaged(FirstOrder(optax.adam(1e-3))),
    "adagrad": lambda: FirstOrder(optax.adagrad(0.03)),
}


@cache
def method_named(name: str) -> Method:
    """A method by name, always the same object.

    A transformation of optax equals nothing but itself: a new one would be compiled by every fit.
    """
    return METHODS[name]()


def default_batch(method: Method, rows: int) -> int:
    """What the method is used to; of a smaller table nearly all rows.

    A power of two then, so that the folds of a table share compiled code.
    """
    usual = method.usual_batch_size
    return usual if rows >= usual else 2 ** (rows.bit_length() - 1)
