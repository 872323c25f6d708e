"""Training of a deep Markov model: sorted batches, an annealed divergence, early stopping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from curvi._core import validation
from curvi._core.compilation import compiled
from curvi._core.errors import InputError
from curvi._core.meshes import current_mesh, replicate, split_batch
from curvi._core.run import Clock
from curvi.engine import (
    Budget,
    ObjectiveProblem,
    Resources,
    belongs,
    hooks_for,
    run,
    step_key,
    traced_objective,
)
from curvi.solvers import KFAC, Averaged, FirstOrder, HessianFree, Method
from curvi.vae._markov import Batch, MarkovObjective
from curvi.vae._markov_flat import flattened
from curvi.vae._stopping import EarlyStopping
from curvi.vae._training import Schedule, Trained

_ROWS_AT_ONCE = 100  # of an evaluation


class Annealed(NamedTuple):
    """Padded sequences sorted by length, and the steps until the divergence counts in full."""

    batch: Batch
    steps: Array


@dataclass(frozen=True)
class SequenceProblem(ObjectiveProblem):
    """Batches of sequences of about one length, and the weight of the divergence of a step.

    The sequences are sorted by length, and epoch e begins its batches at an offset of its own, in
    an order of its own; both follow from seed and epoch alone.
    """

    fixed_key: bool = False

    def sample(
        self, resources: Resources, step: Array, stream: int = 0, size: int | None = None, *,
        first_weight: float = 0.02,
    ) -> tuple[PyTree, PRNGKeyArray]:  # fmt: skip
        """Batch and key of a step.

        ``first_weight``: weight of the divergence at the first step.
        """
        rows, until = resources.rows
        plain = resources._replace(rows=rows)
        count, used = rows.length.shape[0], size or self.batch_size or rows.length.shape[0]
        per_epoch = -(-count // used)
        epoch, within = step // per_epoch, step % per_epoch
        key = jax.random.fold_in(jax.random.fold_in(resources.key, 2 + stream), epoch)
        order = jax.random.permutation(key, jnp.arange(per_epoch, dtype=jnp.int32))
        offset = jax.random.randint(jax.random.fold_in(key, 1), (), 0, count, jnp.int32)
        index = (order[within] * used + offset + jnp.arange(used, dtype=jnp.int32)) % count
        index = split_batch(index)
        picked = jax.tree.map(lambda leaf: jnp.take(leaf, index, axis=0), rows)
        share = (step.astype(until.dtype) + 1) / until
        weight = jnp.clip(first_weight + (1 - first_weight) * share, 0, 1)
        return picked._replace(weight=picked.weight * weight), step_key(plain, step, stream)


@cache
def method_named(
    name: str, learning_rate: float, *, clip: float = 1.0, kfac_step: float = 0.3,
    factor_sequences: int = 20,
) -> Method:  # fmt: skip
    """A method by name, always the same object: transformations of optax equal only themselves.

    ``clip``: norm of a gradient, at most.
    ``kfac_step``: step size of KFAC: a row of its layers is a step, and a batch has hundreds.
    ``factor_sequences``: sequences from which KFAC estimates its factors.
    """
    if name == "hessian_free":
        return HessianFree()
    if name == "kfac":
        return KFAC(step_size=kfac_step, factor_rows=factor_sequences)
    steps = optax.chain(
        optax.clip_by_global_norm(clip), optax.adam(learning_rate, b1=0.95, b2=0.999)
    )
    return Averaged(FirstOrder(steps), window=500)


def as_sequences(sequences: Any, lengths: Any, width: int | None = None) -> list[np.ndarray]:
    """Validate sequences: a list of (steps, width) arrays, or a padded array with lengths.

    Parameters
    ----------
    sequences : sequence of arrays, or array of shape (rows, length, width)
        The observations.
    lengths : sequence of int, optional
        For a padded array, the steps of each sequence.
    width : int, optional
        What the model was fitted with.

    Returns
    -------
    list of arrays
        Of shape (steps, width), in float64.

    Raises
    ------
    InputError
        If there is no sequence, one is empty, or they differ in width.
    """
    given: Sequence[Any] = sequences
    if lengths is not None:
        if len(lengths) != len(sequences):
            raise InputError(f"there are {len(lengths)} lengths for {len(sequences)} sequences")
        given = [np.asarray(s)[: int(n)] for s, n in zip(sequences, lengths, strict=True)]
    found: list[np.ndarray] = []
    for index, sequence in enumerate(given):
        array = validation.real_numbers(sequence, f"sequences[{index}]")
        if array.ndim != 2 or not array.size:
            raise InputError(
                f"sequences[{index}] has the shape {array.shape}; each sequence is an array of "
                "shape (steps, width) with at least one step"
            )
        expected = width or found[0].shape[1] if found or width else array.shape[1]
        if array.shape[1] != expected:
            raise InputError(
                f"sequences[{index}] is {array.shape[1]} wide, but {expected} is expected"
            )
        found.append(array)
    if not found:
        raise InputError("there are no sequences")
    return found


def padded(sequences: Sequence[np.ndarray], dtype: Any) -> Batch:
    """One array for all sequences, in their order."""
    lengths = np.asarray([len(s) for s in sequences], np.int32)
    x = np.zeros((len(sequences), int(lengths.max()), sequences[0].shape[1]), dtype)
    for row, sequence in zip(x, sequences, strict=True):
        row[: len(sequence)] = sequence
    return Batch(x, lengths, np.ones(len(sequences), dtype))


def cut_lengths(
    lengths: np.ndarray, batch_size: int, method: Method, *, most: int = 3
) -> tuple[int, ...]:
    """A few lengths that waste little padding: quantiles of the lengths, rounded up to eight.

    None for so few sequences that every batch holds long ones: each length is compiled. None for
    Hessian-free steps either, which evaluate the objective in many places of their program: their
    products have the whole width in any case.

    ``most``: lengths at which batches are cut off; each is compiled.
    """
    if len(lengths) < most * batch_size or isinstance(method, HessianFree):
        return ()
    levels = np.quantile(lengths, np.linspace(0, 1, most + 1)[1:])
    return tuple(sorted({int(-(-level // 8) * 8) for level in levels}))


@partial(compiled, static_argnums=0)
def _nats(objective: Any, params: PyTree, batch: Batch, key: PRNGKeyArray) -> Array:
    return objective.per_sequence(params, batch, key)


def sequence_bounds(
    objective: MarkovObjective, params: PyTree, batch: Batch, seed: int
) -> np.ndarray:
    """The negative bound of every sequence in nats, a block of similar lengths at a time."""
    out = np.zeros(len(batch.length))
    order = np.argsort(batch.length, kind="stable")
    plain = replace(objective, dropout=0.0, lengths=())
    for first in range(0, len(order), _ROWS_AT_ONCE):
        rows = order[first : first + _ROWS_AT_ONCE]
        longest = int(-(-batch.length[rows].max() // 32) * 32)
        x = np.zeros((len(rows), longest, batch.x.shape[2]), batch.x.dtype)
        x[:, : min(longest, batch.x.shape[1])] = batch.x[rows, :longest]
        part = Batch(jnp.asarray(x), jnp.asarray(batch.length[rows]), jnp.ones(len(rows), x.dtype))
        key = jax.random.fold_in(jax.random.key(seed), first)
        out[rows] = np.asarray(_nats(plain, params, part, key), np.float64)
    return out


def _itself(params: PyTree) -> PyTree:
    return params


def train_sequences(
    objective: MarkovObjective,
    params: PyTree,
    batch: Batch,
    *,
    method: Method,
    schedule: Schedule,
    annealing: int,
    validation_batch: Batch | None = None,
) -> Trained:
    """Minimise the objective over epochs of sequences.

    Parameters
    ----------
    objective : MarkovObjective
        What is minimised.
    params : pytree of arrays
        Where to start.
    batch : Batch
        Training sequences.
    method : Method
        What takes the steps.
    schedule : Schedule
        How long to train, and when to stop.
    annealing : int
        Epochs until the divergence counts in full; zero for none.
    validation_batch : Batch, optional
        Held-out sequences for early stopping.

    Returns
    -------
    Trained
        With the bound of sequences in nats per step as its ELBO.
    """
    clock = Clock(schedule.seconds_of_run)
    order = np.argsort(batch.length, kind="stable")
    mesh = current_mesh()
    everywhere = jnp.asarray if mesh is None else partial(replicate, mesh=mesh)
    rows = Batch(*(everywhere(leaf[order]) for leaf in batch))
    count = len(order)
    size = min(schedule.batch_size, count)
    per_epoch = -(-count // size)
    key = jax.random.key(schedule.seed)
    fn, reads = traced_objective(objective, params, rows, [size], key)
    start = params
    tree: Callable[[PyTree], PyTree] = _itself
    if isinstance(method, HessianFree):
        fn, start = flattened(fn, params)
        tree = fn.tree

    def bound(data: Batch, p: PyTree) -> float:
        total = sequence_bounds(objective, tree(p), data, schedule.seed).sum()
        return -float(total / data.length.sum())

    some = Batch(*(leaf[:_ROWS_AT_ONCE] for leaf in batch))
    held_out = None if validation_batch is None else partial(bound, validation_batch)
    if validation_batch is not None:
        belongs("held-out sequences", validation_batch)
    every = per_epoch * max(1, -(-50 // per_epoch))
    stopping = EarlyStopping(
        partial(bound, some), held_out, schedule.patience, every, schedule.clock,
        patient_until=annealing * per_epoch,
    )  # fmt: skip
    first = (held_out or partial(bound, some))(start)
    until = jnp.asarray(max(1, annealing * per_epoch), rows.x.dtype)
    with hooks_for(schedule.progress, "ELBO", sign=-1.0) as hooks:
        max_steps = schedule.max_epochs * per_epoch
        budget = Budget(1e-30, max_steps, (*hooks, stopping), clock)
        resources = Resources(key, Annealed(rows, until), None)
        problem = SequenceProblem(fn, size, False, reads)
        ended = run(problem, method, start, resources, budget)
    if not stopping.table:
        stopping.evaluate(ended.steps, ended.seconds, ended.params)
    best = ended.params if stopping.best is None else stopping.best
    trained = Trained(
        objective,
        jax.tree.map(np.asarray, tree(best)),
        schedule.seed,
        ended.outcome,
        stopping.history(per_epoch),
        ended.steps,
        ended.seconds,
        ended.trace,
    )
    return trained.judged(first, 1 + 0.1 * abs(first))
