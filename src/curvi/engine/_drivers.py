"""How steps are taken: several at a time in compiled code, or one by one on the host.

A driver holds the state of one run, or of several runs that advance together. The loop
(:mod:`curvi.engine._loop`) asks it for steps and knows nothing else about it.
"""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from curvi._core.compilation import QUICK, SizedJit, compiled, count_use
from curvi._core.errors import Outcome
from curvi._core.meshes import current_mesh, replicate
from curvi._core.run import OutOfTime, deadline
from curvi._core.threads import one_blas_thread
from curvi.engine._execution import Execution
from curvi.engine._recording import leaves_of, restored_tree
from curvi.linalg import namespace
from curvi.solvers import Info, Method, Problem, Stepper

CAPACITY = 500  # steps of one chunk at most, and rows of its trace on device
_ONCE = 0.0  # work of code that runs once, and is not worth any optimisation


class Chunk(NamedTuple):
    """The steps that one run took in one call: a column per field of Info, and how it stands."""

    rows: dict[str, np.ndarray]
    outcome: Outcome


@runtime_checkable
class Driver(Protocol):
    """Takes the steps of one or several runs."""

    @property
    def most_steps(self) -> int:
        """Steps of one call at most."""

    def prepare(self, tolerance: float) -> None:
        """Compile, so that the clock of the trace starts after it."""

    def advance(self, count: int, tolerance: float, seconds: float) -> list[Chunk]:
        """Take up to ``count`` steps in every run that has no outcome yet.

        Raises OutOfTime where that takes longer than ``seconds`` and can be left.
        """

    def params(self, run: int) -> Any:
        """The parameters that a run would return now."""


class Rejections(NamedTuple):
    """Rejected steps in a row, and how many of them met something that is not finite."""

    rejected: Any
    broken: Any

    def after(self, info: Info, *, patience: int = 40) -> tuple[Rejections, Any]:
        """Count a step; the outcome of the run, which gives up when its patience is at an end.

        ``patience``: rejected steps in a row after which a run gives up.
        """
        xp = np if isinstance(info.accepted, bool) else namespace(info.accepted)
        rejected = xp.where(info.accepted, 0, self.rejected + 1)
        broken = xp.where(info.accepted, 0, self.broken + xp.where(info.finite, 0, 1))
        gave_up = xp.where(2 * broken >= rejected, Outcome.NON_FINITE.value, Outcome.STALLED.value)
        impatient = xp.where(rejected >= patience, gave_up, Outcome.RUNNING.value)
        ended = info.outcome != Outcome.RUNNING.value
        return Rejections(rejected, broken), xp.where(ended, info.outcome, impatient)


class Carry(NamedTuple):
    """What a compiled run carries on device."""

    state: Any
    step: Array
    rejections: Rejections
    outcome: Array
    trace: Info


@partial(SizedJit, static_argnames=("method",))
def _begin(problem: Problem, method: Method, params: Any, resources: Any) -> Carry:
    dtype = jax.tree.leaves(params)[0].dtype
    real, flag, count = (jnp.zeros(CAPACITY, kind) for kind in (dtype, jnp.bool_, jnp.int32))
    zero = jnp.asarray(0, jnp.int32)
    trace = Info(real, real, real, count, flag, flag, flag, count, count)
    state = method.init(problem, params, resources)
    return Carry(state, zero, Rejections(zero, zero), zero, trace)


def _steps(
    problem: Problem, method: Method, carry: Carry, resources: Any, stop: Array, tolerance: Array
) -> Carry:
    """Take steps until the step count reaches ``stop`` or the run has an outcome."""
    first = carry.step

    def body(carry: Carry) -> Carry:
        state, info = method.step(problem, carry.state, resources, carry.step, tolerance)
        rejections, outcome = carry.rejections.after(info)
        slot = carry.step - first
        trace = jax.tree.map(lambda table, row: table.at[slot].set(row), carry.trace, info)
        counts = jax.tree.map(lambda count: count.astype(jnp.int32), rejections)
        return Carry(state, carry.step + 1, counts, outcome.astype(jnp.int32), trace)

    return jax.lax.while_loop(
        lambda c: (c.outcome == Outcome.RUNNING.value) & (c.step < stop), body, carry
    )


def _together(
    problem: Problem, method: Method, carry: Carry, resources: Any, stop: Array, tolerance: Array
) -> Carry:
    """The same for several runs that share their resources."""

    def one(single: Carry) -> Carry:
        return _steps(problem, method, single, resources, stop, tolerance)

    return jax.vmap(one)(carry)


_one_run = SizedJit(_steps, static_argnames=("method",))
_several_runs = SizedJit(_together, static_argnames=("method",))


class CompiledDriver:
    """A chunk of steps in one compiled loop; several starts are vectorised."""

    most_steps = CAPACITY

    def __init__(self, problem: Problem, method: Method, starts: list[Any], resources: Any) -> None:
        self.problem, self.method, self.resources = problem, method, resources
        self.num_runs = len(starts)
        carries = [_begin(_ONCE, problem, method, params, resources) for params in starts]
        self.carry = carries[0]
        if self.num_runs > 1:
            self.carry = jax.tree.map(lambda *leaves: jnp.stack(leaves), *carries)
        if (mesh := current_mesh()) is not None:
            # Where the first chunk will leave it: found elsewhere, the second would be compiled.
            self.carry = replicate(self.carry, mesh)
        self.dtype = jax.tree.leaves(starts[0])[0].dtype
        cost = problem.cost(starts[0], resources)
        # Never without any optimisation where a run may be long.
        least = 0.0 if problem.knows_its_length else 2 * QUICK
        self.work = float("inf") if cost is None else max(cost.numbers, least)

    def prepare(self, tolerance: float) -> None:
        """A chunk of no steps compiles."""
        jax.block_until_ready(self._chunk(0, tolerance))

    def advance(self, count: int, tolerance: float, seconds: float) -> list[Chunk]:
        """Take steps on device, then read their rows."""
        before = np.atleast_1d(np.asarray(self.carry.step))
        if (read_ahead := getattr(self.problem, "read_ahead", None)) is not None:
            read_ahead(self.resources, int(before.max()), count)
        with one_blas_thread() if self.method.decomposes else nullcontext():
            found = self._chunk(int(before.max()) + count, tolerance)
            _wait(found.step, seconds)
        self.carry = found
        return [self._read(run, int(before[run])) for run in range(self.num_runs)]

    def params(self, run: int) -> Any:
        """The estimate of the method."""
        return self.method.estimate(self._of(run, self.carry.state))

    def state(self) -> list[Any]:
        """Everything that a run carries, as arrays of the host."""
        return leaves_of(self.carry)

    def restore(self, state: list[Any]) -> None:
        """Go on from there."""
        self.carry = restored_tree(self.carry, state)

    def _chunk(self, stop: int, tolerance: float) -> Carry:
        chunk = _one_run if self.num_runs == 1 else _several_runs
        limit, last = np.asarray(tolerance, self.dtype), np.int32(stop)
        found: Carry = chunk(
            self.work, self.problem, self.method, self.carry, self.resources, last, limit
        )
        return found

    def _of(self, run: int, tree: Any) -> Any:
        return tree if self.num_runs == 1 else jax.tree.map(lambda leaf: leaf[run], tree)

    def _read(self, run: int, first: int) -> Chunk:
        carry = self._of(run, self.carry._replace(state=()))
        count = int(carry.step) - first
        rows = {name: np.asarray(c)[:count] for name, c in carry.trace._asdict().items()}
        return Chunk(rows, Outcome(int(carry.outcome)))


def _wait(
    found: Any, seconds: float, *, shortest: float = 2e-5, longest: float = 0.02,
    share: float = 0.02,
) -> None:  # fmt: skip
    """Wait for a value on device; Ctrl-C and the clock are seen, unlike in a blocking read.

    A computation cannot be stopped: one that is left goes on until it ends, and is forgotten.

    ``shortest``, ``longest``, ``share``: seconds between two looks at a running chunk, which are
    otherwise this share of the time that it has run.
    """
    began = time.perf_counter()
    while not found.is_ready():
        waited = time.perf_counter() - began
        if waited >= seconds:
            raise OutOfTime
        pause = min(max(share * waited, shortest), longest)
        time.sleep(min(pause, seconds - waited))
    found.block_until_ready()  # raises what went wrong, before the state is replaced


class EagerDriver:
    """One step at a time on the host."""

    most_steps = 1

    def __init__(self, steppers: list[Stepper], dtype: Any = np.float64) -> None:
        self.steppers = steppers
        self.counts = [Rejections(0, 0) for _ in steppers]
        self.outcomes = [Outcome.RUNNING for _ in steppers]
        real = np.dtype(dtype)
        self.kinds = (real, real, real, np.int32, np.bool_, np.bool_, np.bool_, np.int32, np.int32)

    def prepare(self, tolerance: float) -> None:
        """Let steppers compile what they evaluate."""
        for stepper in self.steppers:
            getattr(stepper, "prepare", lambda: None)()

    def advance(self, count: int, tolerance: float, seconds: float) -> list[Chunk]:
        """One step of every run that has no outcome yet; none of a run that the clock overtakes."""
        with deadline(seconds):
            return [self._step(run, count, tolerance) for run in range(len(self.steppers))]

    def params(self, run: int) -> Any:
        """Where the run stands."""
        return self.steppers[run].params

    def state(self) -> list[Any] | None:
        """Where every run stands; None where a stepper cannot tell."""
        if not all(hasattr(stepper, "state") for stepper in self.steppers):
            return None
        counts = [[int(n) for n in rejections] for rejections in self.counts]
        states = [stepper.state() for stepper in self.steppers]  # type: ignore[attr-defined]
        return [states, counts, list(self.outcomes)]

    def restore(self, state: list[Any]) -> None:
        """Go on from there."""
        states, counts, self.outcomes = state
        self.counts = [Rejections(*pair) for pair in counts]
        for stepper, found in zip(self.steppers, states, strict=True):
            stepper.restore(found)  # type: ignore[attr-defined]

    def _step(self, run: int, count: int, tolerance: float) -> Chunk:
        taken = []
        if self.outcomes[run] is Outcome.RUNNING and count > 0:
            with suppress(OutOfTime):
                info = self.steppers[run].step(tolerance)
                self.counts[run], code = self.counts[run].after(info)
                self.outcomes[run] = Outcome(int(code))
                taken = [info]
        columns = zip(*taken, strict=True) if taken else [()] * len(Info._fields)
        rows = {
            name: np.asarray([np.asarray(entry) for entry in column], kind)
            for name, column, kind in zip(Info._fields, columns, self.kinds, strict=True)
        }
        return Chunk(rows, self.outcomes[run])


@partial(compiled, static_argnames="method")
def _one_step(
    problem: Problem, method: Method, state: Any, resources: Any, step: Array, tolerance: Array
) -> tuple[Any, Info]:
    return method.step(problem, state, resources, step, tolerance)


class StepByStep:
    """A method without steps of its own on the host: each is one compiled call."""

    def __init__(self, problem: Problem, method: Method, params: Any, resources: Any) -> None:
        self.problem, self.method, self.resources = problem, method, resources
        self.state_tree = _begin(_ONCE, problem, method, params, resources).state
        self.dtype = jax.tree.leaves(params)[0].dtype
        self.count = 0

    @property
    def params(self) -> Any:
        """The estimate of the method."""
        return self.method.estimate(self.state_tree)

    def state(self) -> list[Any]:
        """State of the method, and steps taken."""
        return [leaves_of(self.state_tree), self.count]

    def restore(self, state: list[Any]) -> None:
        """Go on from there."""
        leaves, self.count = state
        self.state_tree = restored_tree(self.state_tree, leaves)

    def step(self, tolerance: float) -> Info:
        """One compiled step."""
        count, limit = jnp.asarray(self.count, jnp.int32), jnp.asarray(tolerance, self.dtype)
        self.state_tree, info = _one_step(
            self.problem, self.method, self.state_tree, self.resources, count, limit
        )
        self.count += 1
        return Info(*(np.asarray(entry)[()] for entry in info))


def make_driver(
    problem: Problem, method: Method, starts: list[Any], resources: Any, execution: Execution
) -> Driver:
    """The driver that the policy chooses for runs from these starts."""
    count_use(jax.tree.structure(problem), method)
    if not execution.runs_eagerly(problem, method, starts[0], resources):
        return CompiledDriver(problem, method, starts, resources)
    steppers = [
        method.stepper(problem, params, resources) or StepByStep(problem, method, params, resources)
        for params in starts
    ]
    return EagerDriver(steppers, jax.tree.leaves(starts[0])[0].dtype)
