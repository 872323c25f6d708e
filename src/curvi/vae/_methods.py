"""The methods that an auto-encoder knows by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import optax

from curvi._core import validation
from curvi.solvers import KFAC, LBFGS, Averaged, FirstOrder, HessianFree, Method

METHODS: dict[str, Callable[[], Method]] = {
    "kfac": KFAC,
    "hessian_free": HessianFree,
    "lbfgs": lambda: LBFGS(history=10),
    "adam": lambda: Averaged(FirstOrder(optax.adam(1e-3), check_updates=False)),
    "adagrad": lambda: FirstOrder(optax.adagrad(0.03), check_updates=False),
}


@cache
def method_named(name: str) -> Method:
    """A method by name, always the same object.

    A transformation of optax equals nothing but itself: a new one would be compiled by every fit.
    """
    return METHODS[name]()


def as_method(method: Any) -> Method:
    """A method by name, one of curvi's own, or a transformation of optax.

    Raises
    ------
    InputError
        If it is none of them.
    """
    if isinstance(method, optax.GradientTransformation | optax.GradientTransformationExtraArgs):
        return FirstOrder(method)
    if isinstance(method, Method):
        return method
    return method_named(validation.one_of(method, tuple(METHODS), "method"))


def rows_per_step(given: int | None, method: Method, rows: int) -> int:
    """What is asked for, at most all rows, or what the method is used to.

    A table of half as many rows has some read twice, and of a smaller one nearly all are read, as a
    power of two: tables of another length, and the folds of one, share compiled code.
    """
    if given is not None:
        return min(given, rows)
    usual = method.usual_batch_size
    return usual if 2 * rows >= usual else 2 ** (rows.bit_length() - 1)
