"""Rows over several devices: how they are placed, and who works on them.

Every process of a job runs the same program on the same arguments. Rows are cut along the axis
"data" of a mesh, everything else is on every device, and XLA adds up what the shards give.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from curvi._core.errors import InputError
from curvi._core.processes import of_all_processes
from curvi._core.run import current_run
from curvi._core.trees import BLOCK

AXIS = "data"


def data_mesh(num_devices: int | None = None) -> Mesh:
    """A mesh of one axis, "data", over the devices of all processes.

    Parameters
    ----------
    num_devices : int, optional
        How many of them, from the first; all by default.

    Returns
    -------
    jax.sharding.Mesh
        To be given as ``mesh=``.

    Raises
    ------
    InputError
        If there are fewer devices.

    Examples
    --------
    >>> import curvi
    >>> curvi.data_mesh(1).axis_names
    ('data',)
    """
    devices = jax.devices()
    count = len(devices) if num_devices is None else num_devices
    if not 1 <= count <= len(devices):
        raise InputError(
            f"num_devices is {count} and JAX sees {len(devices)}; on a CPU set XLA_FLAGS="
            "--xla_force_host_platform_device_count, or start several processes"
        )
    return Mesh(np.asarray(devices[:count]), (AXIS,))


def checked_mesh(mesh: Any) -> Mesh:
    """Validate a mesh: it has the axis that rows are cut along."""
    if not isinstance(mesh, Mesh) or AXIS not in mesh.axis_names:
        raise InputError(
            f"mesh is {mesh!r}; give a jax.sharding.Mesh with an axis {AXIS!r}, such as "
            "curvi.data_mesh()"
        )
    return mesh


def current_mesh() -> Mesh | None:
    """The mesh of the call that is under way, if it has one."""
    mesh: Mesh | None = current_run().mesh
    return mesh


def layout() -> str:
    """The devices of the current mesh in words: what the bits of a run depend on."""
    mesh, count = current_mesh(), jax.process_count()
    return "no mesh" if mesh is None else f"devices {mesh.devices.size}, processes {count}"


def padded_count(count: int, mesh: Mesh) -> int:
    """Rows that fill every shard with whole blocks."""
    unit = BLOCK * mesh.shape[AXIS]
    return -(-count // unit) * unit


def place_rows(rows: PyTree, mesh: Mesh) -> PyTree:
    """Cut arrays of rows over the mesh; the last row is repeated until all shards are full.

    Every process is given all rows, on disk perhaps, and reads its own.
    """
    _require_same_rows([np.asarray(leaf) for leaf in jax.tree.leaves(rows)])
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))

    def placed(leaf: Any) -> jax.Array:
        count, total = leaf.shape[0], padded_count(leaf.shape[0], mesh)

        def part(index: Any) -> np.ndarray:
            first, last, _ = index[0].indices(total)
            return np.asarray(leaf[np.minimum(np.arange(first, last), count - 1)])

        return jax.make_array_from_callback((total, *leaf.shape[1:]), sharding, part)

    return jax.tree.map(placed, jax.tree.map(np.asarray, rows))


def _require_same_rows(leaves: list[np.ndarray]) -> None:
    """Refuse rows that differ between processes: shapes, and of long tables a sample of rows."""
    if jax.process_count() == 1:
        return
    found = hashlib.sha256()
    for leaf in leaves:
        found.update(f"{leaf.dtype} {leaf.shape}".encode())
        found.update(leaf[:: 1 + len(leaf) // 2**16].tobytes())
    own = found.digest()
    if of_all_processes(own) != own * jax.process_count():
        raise InputError(
            "the processes were given different rows; give all rows to each of them, in one order, "
            "from one file or one seed"
        )


def split_batch(index: Any) -> Any:
    """Let the devices of the current mesh share a batch, where its rows divide evenly."""
    mesh = current_mesh()
    if mesh is None or index.shape[0] % mesh.shape[AXIS]:
        return index
    return jax.lax.with_sharding_constraint(index, NamedSharding(mesh, PartitionSpec(AXIS)))


def each_on_one(compute: Callable[[Any], Any], arrays: Sequence[Any]) -> list[Any]:
    """``[compute(a) for a in arrays]``, traced; every device of the current mesh takes its share.

    For dear functions of a few arrays that are on every device, such as decompositions; an answer
    has the shape of its array, and the bits that one device would give it.
    """
    mesh = current_mesh()
    count = 1 if mesh is None else mesh.shape[AXIS]
    if mesh is None or count == 1 or len(arrays) < 2:
        return [compute(array) for array in arrays]
    by_size = sorted(range(len(arrays)), key=lambda place: -arrays[place].size)
    owners = {place: turn % count for turn, place in enumerate(by_size)}

    def share(*given: Any) -> Any:
        here = jax.lax.axis_index(AXIS)
        parts = [
            jax.lax.cond(here == owners[place], compute, jnp.zeros_like, array)
            for place, array in enumerate(given)
        ]
        return jax.lax.psum(parts, AXIS)  # with zeros

    everywhere = PartitionSpec()
    found = jax.shard_map(
        share, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False
    )
    return list(found(*arrays))


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
    """Arrays on every device of the mesh."""
    everywhere = NamedSharding(mesh, PartitionSpec())

    def placed(leaf: Any) -> jax.Array:
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = placed(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, everywhere, lambda index: values[index])

    return jax.tree.map(placed, tree)


def divided(compute: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """``compute(*arrays)`` on the host, its rows shared by the processes of the current mesh.

    Each process computes some rows of the answer (an array, or a tuple of arrays), and all of them
    are given the whole: bit by bit what one process would compute, as long as rows do not depend
    on each other.
    """
    count, total = jax.process_count(), len(arrays[0])
    if current_mesh() is None or count == 1 or total < count:
        return compute(*arrays)
    from jax.experimental import multihost_utils

    parts = np.array_split(np.arange(total), count)
    own = parts[jax.process_index()]
    found = compute(*(array[own] for array in arrays))

    def whole(part: np.ndarray) -> np.ndarray:
        size = len(parts[0])  # the longest; bytes, whatever JAX's precision is
        filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
        raw = np.frombuffer(np.ascontiguousarray(filled).tobytes(), np.uint8)
        gathered = np.asarray(multihost_utils.process_allgather(raw))
        blocks = (np.frombuffer(row.tobytes(), part.dtype) for row in gathered)
        pairs = zip(blocks, parts, strict=True)
        return np.concatenate([block.reshape(filled.shape)[: len(p)] for block, p in pairs])

    return tuple(map(whole, found)) if isinstance(found, tuple) else whole(found)
