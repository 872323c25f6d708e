"""How hard to compile: code that runs for milliseconds is not worth seconds of optimisation.

XLA spends most of its time on a CPU in fusing loops and in optimising the machine code of each.
Without its fusion emitters and with few passes behind them it is two to three times as fast and
the code is as good; without the optimiser it is five to ten times as fast, and the code one and a
half to four times slower. The choice
follows from the size of the program alone, never from a clock: the same fit gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend import core as jaxpr_core

QUICK = 3e5  # numbers that one run computes, up to which nothing is optimised
BRISK = 3e7  # and up to which loops are fused the simple way
_UNKNOWN = 100  # passes that a loop of unknown length is taken to make
_FACTORISATIONS = {"cholesky", "triangular_solve", "lu", "qr", "geqrf", "eigh", "eig", "svd"}
_SIMPLE_FUSION = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
_UNOPTIMISED = {
    **_SIMPLE_FUSION,
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,  # parts for threads cost more than they save here
}


_compiled: list[Any] = []  # every function of curvi that JAX compiles
_forgotten: list[Callable[[], None]] = []  # what else is dropped with their code
_used: set[int] = set()  # hashes of them, since the caches were cleared


def compiled(fn: Callable[..., Any], **options: Any) -> Any:
    """``jax.jit``, with code that :func:`clear_caches` can drop."""
    jitted = jax.jit(fn, **options)
    _compiled.append(jitted)
    return jitted


def on_clearing(forget: Callable[[], None]) -> None:
    """Have :func:`clear_caches` call this, too."""
    _forgotten.append(forget)


def clear_caches() -> None:
    """Drop the compiled code that curvi keeps for the next call.

    It is called by itself when code for 64 different functions and methods has come together, so
    that a process that goes on to new models does not grow for ever. Results and estimators are
    not affected; the next fit compiles again.

    Examples
    --------
    >>> import curvi
    >>> curvi.clear_caches()
    """
    _used.clear()
    for jitted in _compiled:
        jitted.clear_cache()
    for forget in _forgotten:
        forget()


def count_use(*key: Any, most: int = 64) -> None:
    """Count what code is compiled for, if it is new, and make room once there is too much.

    ``most``: functions and methods whose compiled code is kept.
    """
    mark = hash(key)
    if mark in _used:
        return
    if len(_used) >= most:
        clear_caches()
    _used.add(mark)


class SizedJit:
    """``jax.jit`` with compile options that fit the work of one run, which the call takes first.

    Outside a CPU, inside another trace, and where this version of XLA knows other options, it is
    plain ``jax.jit``.
    """

    def __init__(self, fn: Callable[..., Any], *, static_argnames: tuple[str, ...] = ()) -> None:
        self._plain = compiled(fn, static_argnames=static_argnames)
        self._levels = [
            (limit, compiled(fn, static_argnames=static_argnames, compiler_options=options))
            for limit, options in ((QUICK, _UNOPTIMISED), (BRISK, _SIMPLE_FUSION))
        ]
        self._known = True

    def __call__(self, work: float, *args: Any, **keywords: Any) -> Any:
        """Run the function, compiled with the options that fit ``work``."""
        chosen = next((level for limit, level in self._levels if work <= limit), None)
        if chosen is not None and self._known and jax.default_backend() == "cpu":
            try:
                return chosen(*args, **keywords)
            except jax.errors.JaxRuntimeError as error:
                if "compile option" not in str(error):
                    raise
                self._known = False
            except ValueError as error:  # JAX takes options at the top level only
                if "top-level" not in str(error):
                    raise
        return self._plain(*args, **keywords)


class Cost(NamedTuple):
    """Numbers that a program computes, and operations that it does one after another."""

    numbers: float
    operations: float

    def of_product(self, *, passes: int = 8) -> Cost:
        """The cost of a Hessian-vector product, for that of one evaluation.

        ``passes``: evaluations of its function that a product costs.
        """
        return Cost(passes * self.numbers, passes * self.operations)


def cost_of(fn: Callable[..., Any], *args: Any) -> Cost:
    """About what one call of ``fn`` costs, from its trace: no call is made."""
    return cost_of_jaxpr(jax.make_jaxpr(fn)(*args).jaxpr)


def cost_of_jaxpr(jaxpr: Any) -> Cost:
    """About what one run of a program costs."""
    costs = [_of_equation(equation) for equation in jaxpr.eqns]
    return Cost(sum(cost.numbers for cost in costs), sum(cost.operations for cost in costs))


def _of_equation(equation: Any) -> Cost:
    inner = [cost_of_jaxpr(found) for value in equation.params.values() for found in _jaxprs(value)]
    if inner:
        unknown = _UNKNOWN if equation.primitive.name == "while" else 1
        times = float(equation.params.get("length", unknown))
        numbers, operations = (sum(column) for column in zip(*inner, strict=True))
        return Cost(times * numbers, times * operations)
    size = float(sum(math.prod(getattr(out.aval, "shape", ())) for out in equation.outvars))
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        size *= math.prod(shape[axis] for axis in contracted)
    elif equation.primitive.name in _FACTORISATIONS:
        size *= float(equation.invars[0].aval.shape[-1])
    return Cost(size, 1.0)


def _jaxprs(value: Any) -> list[Any]:
    """The programs inside a parameter of an equation."""
    if isinstance(value, jaxpr_core.ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, jaxpr_core.Jaxpr):
        return [value]
    if isinstance(value, tuple | list):
        return [found for item in value for found in _jaxprs(item)]
    return []
