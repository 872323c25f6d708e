"""What a run computes, as digests that can be compared from one process to the next."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from curvi._core.errors import InputError
from curvi._core.meshes import layout
from curvi._core.processes import of_all_processes
from curvi._core.trees import leaf_names
from curvi.io import Stream
from curvi.solvers import Method, Problem

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_SHORT = 16  # characters of a digest


class Identities:
    """Digests of programs and arrays; each is computed once in the life of a session."""

    def __init__(self) -> None:
        self._known: dict[Any, str] = {}
        self._alive: list[Any] = []  # an id is that of a living object only

    def of_run(
        self, problem: Problem, method: Method, starts: list[Any], resources: Any
    ) -> dict[str, str]:
        """What decides the bits of a run: program, parameters, draws and rows."""
        noise = getattr(resources, "noise", None)
        seed = getattr(resources, "key", None)
        rows = getattr(resources, "rows", resources)
        return {
            "layout": layout(),
            "method": plain(repr(method)),
            "parameters": described(starts),
            "model": self._program(problem, method, starts[0], resources),
            "data": self.arrays((jax.tree.leaves(problem), rows)),
            "seed": self.arrays(seed),
            "draws": self.arrays(noise),
            "start": self.arrays(starts),
        }

    def arrays(self, tree: Any) -> str:
        """Of the leaves of a tree: shapes, dtypes and numbers."""
        total = hashlib.sha256()
        for leaf in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Stream)):
            total.update(self._once(leaf).encode())
        return total.hexdigest()[:_SHORT]

    def stream(self, source: Any, arrays: Iterable[Any]) -> str:
        """Of arrays that come one after another; read once for each source."""
        if ("stream", id(source)) not in self._known:
            total = hashlib.sha256()
            for array in arrays:
                total.update(array_digest(array).encode())
            self._alive.append(source)
            self._known["stream", id(source)] = total.hexdigest()[:_SHORT]
        return self._known["stream", id(source)]

    def _once(self, leaf: Any) -> str:
        if id(leaf) not in self._known:
            self._alive.append(leaf)
            digest = stream_digest if isinstance(leaf, Stream) else array_digest
            self._known[id(leaf)] = digest(leaf)
        return self._known[id(leaf)]

    def _program(self, problem: Problem, method: Method, params: Any, resources: Any) -> str:
        """One step of the method, as JAX sees it: operations, shapes, and numbers among them."""
        given = (problem, params, resources)
        shapes = tuple((jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(given))
        known = (jax.tree.structure(given), shapes, method)
        if known not in self._known:

            def step(problem: Problem, params: Any, resources: Any) -> Any:
                if method.host_only:  # the method itself is a part of what is compared
                    return problem.value(params, problem.sample(resources, jnp.asarray(0)))
                state = method.init(problem, params, resources)
                tolerance = jnp.zeros((), jax.tree.leaves(params)[0].dtype)
                count = jnp.asarray(0, jnp.int32)
                return method.step(problem, state, resources, count, tolerance)

            text = plain(str(jax.make_jaxpr(step)(*given)))
            self._known[known] = short_digest(text)
        return self._known[known]


def short_digest(text: str) -> str:
    """Of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:_SHORT]


def plain(text: str) -> str:
    """A description without the addresses of objects."""
    return _ADDRESS.sub("0x", text)


def described(tree: Any) -> str:
    """Names, dtypes and shapes of the leaves."""
    leaves = zip(leaf_names(tree), jax.tree.leaves(tree), strict=True)
    return ", ".join(f"{name} {jnp.result_type(x)}{list(jnp.shape(x))}" for name, x in leaves)


def array_digest(array: Any) -> str:
    """Of dtype, shape and bytes; of an array beyond a gigabyte, of evenly spaced pieces."""
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    here = not isinstance(array, jax.Array) or array.is_fully_addressable
    if not here and not array.is_fully_replicated:  # rows of other processes
        return _shared_digest(array)
    # What is on disk is read as far as its digest needs it.
    on_disk = not isinstance(array, jax.Array) and hasattr(array, "nbytes")
    values = array if on_disk else np.asarray(array)
    total = hashlib.sha256(f"{values.dtype.str}{values.shape}".encode())
    for piece in _pieces(values):
        total.update(np.ascontiguousarray(np.asarray(piece)).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _shared_digest(array: jax.Array) -> str:
    """Of rows that processes share: each digests its own, and all are given the same answer."""
    total = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    for shard in sorted(array.addressable_shards, key=lambda shard: str(shard.index)):
        total.update(f"{shard.index}{array_digest(np.asarray(shard.data))}".encode())
    return hashlib.sha256(of_all_processes(total.digest())).hexdigest()


def stream_digest(rows: Stream) -> str:
    """Of rows on the host: of their arrays, or of their blocks in one pass."""
    total, host = hashlib.sha256(), rows.host
    if host is None:
        raise InputError("these rows are not known to this process any more")
    parts = [host.arrays] if host.blocks is None or host.arrays is not None else host.blocks()
    for part in parts:
        for array in jax.tree.leaves(part):
            total.update(array_digest(array).encode())
    return total.hexdigest()


def _pieces(
    values: np.ndarray, *, whole: int = 2**30, pieces: int = 1024, piece: int = 2**16
) -> Iterable[np.ndarray]:
    if values.ndim == 0 or values.nbytes <= whole:
        yield values
        return
    rows = max(1, piece * values.shape[0] // values.nbytes)
    for first in np.linspace(0, values.shape[0] - rows, pieces).astype(int):
        yield values[first : first + rows]
