"""Users' functions as programs: traced once per fit, compiled once per structure.

JAX compiles a function together with the values that it reads from outside: a class attribute, a
global, an array in a closure. curvi keeps compiled code for the next fit, so it must know whether
those values are still the same. It does not guess from the function; it traces it anew for every
fit and compares what the trace says. Arrays that the function reads become arguments of its
program: the same model on other data, or the same function defined again, is the same program and
compiles nothing. Compiled code then holds no data but what loops, branches and custom rules of
differentiation enclose.
"""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jaxpr_core
from jaxtyping import PyTree

from curvi._core.compilation import Cost, cost_of_jaxpr, count_use, on_clearing
from curvi._core.trees import on_device, precision_of

_JAX = str(Path(jax.__file__).parent)
_LIBRARIES = str(Path(jax.__file__).parents[1])
_CONTEXT = ("compute_type", "threefry_partitionable", "xla_metadata", "cur_abstract_mesh")
_fresh = jax.make_user_context(0) if hasattr(jax, "make_user_context") else None
_count = itertools.count(1)
_PLAIN = (bool, int, str, bytes, complex, type(None))


class Token:
    """A program without its arrays, by value: what JAX keeps beside compiled code."""

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key, self.hash = key, hash(key)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Token) and self.hash == other.hash and self.key == other.key
        )


class Structure:
    """All of a program but its arrays; programs of equal tokens share compiled code."""

    def __init__(self, jaxpr: Any, out_tree: Any, key: tuple[Any, ...]) -> None:
        self.token, self.out_tree = Token(key), out_tree
        self.cost: Cost = cost_of_jaxpr(jaxpr)

        def program(constants: list[Any], arguments: list[Any]) -> list[Any]:
            return jax.core.eval_jaxpr(jaxpr, constants, *arguments)

        self.run = jax.jit(program)  # JAX traces it once, however often it is differentiated

    def __hash__(self) -> int:
        return hash(self.token)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self.token == other.token


_structures: weakref.WeakValueDictionary[Token, Structure] = weakref.WeakValueDictionary()


@jax.tree_util.register_pytree_node_class
class Program:
    """A traced function: a pytree of the arrays that it reads, which a call passes along."""

    def __init__(self, structure: Structure, constants: list[Any]) -> None:
        self.structure, self.constants = structure, constants

    def __call__(self, *arguments: PyTree) -> PyTree:
        """Evaluate at arguments of the shapes it was traced for."""
        found = self.structure.run(self.constants, jax.tree.leaves(arguments))
        return jax.tree.unflatten(self.structure.out_tree, found)

    def tree_flatten(self) -> tuple[list[Any], Token]:
        """The arrays, and a token for the rest, which JAX may keep for ever."""
        _structures.setdefault(self.structure.token, self.structure)
        return self.constants, self.structure.token

    @classmethod
    def tree_unflatten(cls, token: Token, constants: Any) -> Program:
        """The program with other arrays, or with tracers in their place."""
        return cls(_structures[token], list(constants))


def trace(function: Callable[..., PyTree], *arguments: PyTree) -> Program:
    """The program of a function for arguments of these shapes.

    Arrays of NumPy are copied: what is written into them later does not reach the program.
    """

    def anew(*given: Any) -> PyTree:  # JAX remembers the traces of a function that it has seen
        return function(*given)

    closed, shapes = jax.make_jaxpr(anew, return_shape=True)(*arguments)
    if _has_functions_of_the_user(closed.jaxpr) and _fresh is not None:
        with _fresh(next(_count)):
            closed, shapes = jax.make_jaxpr(anew, return_shape=True)(*arguments)
    if _holds_arrays(closed.jaxpr):
        leaves = jax.tree.leaves(arguments)
        closed = jax.make_jaxpr(lambda *flat: _inlined(closed.jaxpr, closed.consts, *flat))(*leaves)
    closed = _with_numbers_as_arrays(closed)
    constants = [
        _own(constant, var.aval)
        for constant, var in zip(closed.consts, closed.jaxpr.constvars, strict=True)
    ]
    out_tree = jax.tree.structure(shapes)
    key: tuple[Any, ...] = (_key(closed.jaxpr), out_tree)
    structure = Structure(closed.jaxpr, out_tree, key)
    if _has_rules(closed.jaxpr):
        # What differs may be in the rules of differentiation alone.
        key = (*key, _derivatives(Program(structure, constants), arguments))
        structure = Structure(closed.jaxpr, out_tree, key)
    count_use(structure.token)
    return Program(_structures.setdefault(structure.token, structure), constants)


def _own(constant: Any, aval: Any) -> Any:
    """An array that nobody else can change, in the precision of the trace."""
    if isinstance(constant, jax.Array):
        return constant
    # A program may be made while another one is traced, and must not hold its tracers.
    with precision_of(aval.dtype), jax.ensure_compile_time_eval():
        return on_device(np.array(constant, aval.dtype))


def _has_functions_of_the_user(jaxpr: Any) -> bool:
    """Whether a loop, branch or compiled function inside is the user's own.

    JAX remembers the trace of such a function for as long as the function lives, whatever it
    reads. It is then traced once more in a context that JAX has not seen.
    """
    return any(
        not _file_of(inner.debug_info).startswith(_LIBRARIES) or _has_functions_of_the_user(inner)
        for equation in jaxpr.eqns
        for inner in _inner(equation)
    )


def _file_of(debug_info: Any) -> str:
    """The file that a traced function is written in."""
    return str(getattr(debug_info, "func_src_info", "")).rpartition(" at ")[2]


def _with_numbers_as_arrays(
    closed: Any, *, simplified: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0)
) -> Any:
    """A program that takes its numbers as arrays, so that it stays the same when they change.

    Numbers that XLA simplifies stay: zeros, ones and twos, halves, and exponents.

    ``simplified``: numbers that XLA simplifies, and that therefore stay in the code.
    """
    variables, values = [], []

    def replaced(atom: Any, name: str) -> Any:
        aval: Any = atom.aval
        if (
            not isinstance(atom, jaxpr_core.Literal)
            or not jnp.issubdtype(aval.dtype, jnp.floating)
            or aval.weak_type
            or aval.shape
            or name == "pow"
            or abs(float(atom.val)) in simplified
            or not np.isfinite(atom.val)
        ):
            return atom
        variables.append(jaxpr_core.Var(aval))
        values.append(np.asarray(atom.val, aval.dtype))
        return variables[-1]

    equations = [
        equation.replace(invars=[replaced(a, equation.primitive.name) for a in equation.invars])
        for equation in closed.jaxpr.eqns
    ]
    if not variables:
        return closed
    jaxpr = closed.jaxpr.replace(constvars=[*closed.jaxpr.constvars, *variables], eqns=equations)
    return jaxpr_core.ClosedJaxpr(jaxpr, [*closed.consts, *values])


def _inlined(jaxpr: Any, constants: list[Any], *arguments: Any) -> list[Any]:
    """Evaluate a program so that arrays inside its compiled functions become its own."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jaxpr_core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        inner = equation.params.get("jaxpr") if equation.primitive.name == "jit" else None
        if inner is not None and (inner.consts or _holds_arrays(inner.jaxpr)):
            found = _inlined(inner.jaxpr, inner.consts, *map(read, equation.invars))
        else:
            names = [atom for atom in equation.invars if not isinstance(atom, jaxpr_core.Literal)]
            single = jaxpr.replace(
                constvars=[], invars=names, outvars=equation.outvars, eqns=[equation]
            )
            found = jax.core.eval_jaxpr(single, (), *map(read, names))
        values.update(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _inner(equation: Any) -> list[Any]:
    return list(jaxpr_core.jaxprs_in_params(equation.params))


def _holds_arrays(jaxpr: Any) -> bool:
    """Whether a function that was compiled by the user holds arrays of its own."""
    return any(
        equation.params["jaxpr"].consts or _holds_arrays(equation.params["jaxpr"].jaxpr)
        for equation in jaxpr.eqns
        if equation.primitive.name == "jit"
    )


def _has_rules(jaxpr: Any) -> bool:
    """Whether derivatives are given by functions, as by ``jax.custom_jvp``, which no trace shows.

    Those of JAX itself read nothing that could change.
    """
    return any(
        (equation.primitive.name.startswith("custom_") and not _is_of_jax(equation))
        or any(map(_has_rules, _inner(equation)))
        for equation in jaxpr.eqns
    )


def _is_of_jax(equation: Any) -> bool:
    file = _file_of(getattr(equation.params.get("jvp_jaxpr_fun"), "debug_info", None))
    # There JAX wraps rules of the user's.
    wraps = ("custom_derivatives.py", str(Path("lax", "control_flow")))
    return file.startswith(_JAX) and not any(part in file for part in wraps)


def _derivatives(program: Program, arguments: tuple[PyTree, ...]) -> Any:
    """What second derivatives in the first argument compute; curvi takes no higher ones."""

    def total(first: PyTree, rest: Any, constants: Any) -> Any:
        found = Program(program.structure, constants)(first, *rest)
        sums = [jnp.sum(leaf) for leaf in jax.tree.leaves(found)]
        real = [one for one in sums if jnp.issubdtype(one.dtype, jnp.floating)]
        return sum(real[1:], real[0])

    def second(first: PyTree, *given: Any) -> Any:
        return jax.jvp(lambda point: jax.grad(total)(point, *given), (first,), (first,))

    try:
        closed = jax.make_jaxpr(second)(arguments[0], arguments[1:], program.constants)
    except Exception:  # noqa: BLE001  not differentiable: compile anew rather than compare too little
        return _Unique()
    return _closed_key(closed)


class _Unique:
    """Equal to nothing else."""


def _closed_key(closed: Any) -> tuple[Any, ...]:
    return (_key(closed.jaxpr), *(_array_key(constant) for constant in closed.consts))


def _key(jaxpr: Any) -> tuple[Any, ...]:
    """A program by value: operations, shapes and numbers, with variables in order."""
    numbers: dict[Any, int] = {}

    def atom(one: Any) -> Any:
        if isinstance(one, jaxpr_core.Literal):
            return (one.aval, _array_key(one.val))
        return numbers.setdefault(one, len(numbers))

    inputs = tuple((atom(var), var.aval) for var in (*jaxpr.constvars, *jaxpr.invars))
    equations = tuple(
        (
            equation.primitive,
            tuple(map(atom, equation.invars)),
            _params_key(equation),
            tuple(_mark(getattr(equation.ctx, name, None)) for name in _CONTEXT),
            str(equation.effects),
            tuple((atom(var), var.aval) for var in equation.outvars),
        )
        for equation in jaxpr.eqns
    )
    return (inputs, equations, tuple(map(atom, jaxpr.outvars)))


def _params_key(equation: Any) -> tuple[Any, ...]:
    if equation.primitive.name.startswith("custom_"):
        return tuple(map(_key, _inner(equation)))  # their rules are in the derivatives
    return tuple((name, _mark(value)) for name, value in equation.params.items() if name != "name")


def _mark(value: Any) -> Any:
    if isinstance(value, jaxpr_core.ClosedJaxpr):
        mark: Any = _closed_key(value)
    elif isinstance(value, jaxpr_core.Jaxpr):
        mark = _key(value)
    elif isinstance(value, tuple | list):
        mark = (type(value).__name__, *map(_mark, value))
    elif isinstance(value, dict):
        mark = tuple((_mark(key), _mark(item)) for key, item in value.items())
    elif isinstance(value, float):
        mark = ("float", value.hex())
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        mark = _array_key(value)
    elif isinstance(value, _PLAIN):
        mark = (type(value).__name__, value)
    else:
        mark = value if type(value).__hash__ is not None else _Unique()
    return mark


class CachedValues:
    """Values of functions without arguments, by all that they read.

    A model that is read again, as for every fit of a simulation, is then not compiled again.

    Parameters
    ----------
    compute : callable
        From the program of a function to its value, a pytree of arrays.
    most : int
        Values that are kept, those that were last used.
    numbers : int
        In a value that is kept, at most.
    """

    def __init__(
        self, compute: Callable[[Program], PyTree],
        *, most: int = 64, numbers: int = 100_000,
    ) -> None:  # fmt: skip
        self._compute, self._most, self._numbers = compute, most, numbers
        self._values: OrderedDict[tuple[Any, ...], PyTree] = OrderedDict()
        on_clearing(self._values.clear)

    def __call__(self, function: Callable[[], PyTree]) -> PyTree:
        """The value of the function as arrays of NumPy, computed or remembered."""
        program = trace(function)
        key = read_by(program)
        if key in self._values:
            self._values.move_to_end(key)
            return jax.tree.map(np.copy, self._values[key])
        value = jax.tree.map(np.asarray, self._compute(program))
        if sum(leaf.size for leaf in jax.tree.leaves(value)) <= self._numbers:
            self._values[key] = jax.tree.map(np.copy, value)
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        return value


def read_by(program: Program) -> tuple[Any, ...]:
    """A program with all that it reads, by value."""
    return (program.structure, *map(_array_key, program.constants))


def _array_key(array: Any) -> tuple[Any, ...]:
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    values = np.asarray(array)
    data = np.ascontiguousarray(values).tobytes()
    short = data if len(data) <= 64 else hashlib.blake2b(data).digest()
    return (type(array).__name__, values.shape, values.dtype.str, short)
