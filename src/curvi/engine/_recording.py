"""The entry of one run in the log of a checkpoint: written after a chunk, read when it resumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from curvi._core.errors import InputError, Interrupted, Outcome
from curvi._core.meshes import current_mesh, replicate
from curvi._core.processes import beat
from curvi.engine._checkpoint import Session, current_session


class Position(NamedTuple):
    """Where the loop stands between two chunks."""

    outcomes: list[Outcome]
    tables: list[list[dict[str, np.ndarray]]]
    step: int
    seconds: float


class Recording:
    """One call of the loop, whose number in its session says which entry of the log is its own.

    Parameters
    ----------
    identity : callable
        Returns what decides the bits of the runs, as digests by name; called in a session only.
        None records nothing.
    """

    def __init__(self, identity: Callable[[Session], dict[str, str]] | None) -> None:
        self.session = None if identity is None else current_session()
        if identity is None or self.session is None:
            return
        self.number = self.session.next_run
        self.session.next_run += 1
        self.identity = identity(self.session)
        entry = self.entry
        if entry is not None and entry["identity"] != self.identity:
            self._compare(self.session, entry["identity"])
            del self.session.log[self.number :]  # recomputed: a clock may have decided otherwise

    def _compare(self, session: Session, stored: dict[str, str]) -> None:
        """The first run is that of the call itself: a difference is one of model or data.

        What :func:`belongs` has said before it is no run.
        """
        if all(set(entry) == {"identity"} for entry in session.log[: self.number]):
            for name, given in self.identity.items():
                if stored.get(name) != given:
                    session.refuse(name, stored.get(name), given)

    @property
    def entry(self) -> dict[str, Any] | None:
        """The entry in the log, if there is one."""
        log = [] if self.session is None else self.session.log
        return log[self.number] if self.session is not None and self.number < len(log) else None

    def ended(
        self, like: list[Any], max_steps: int, hooks: tuple[Any, ...] = ()
    ) -> list[Any] | None:
        """Results of runs that ended in an earlier process: (params, outcome, trace, seconds) each.

        None where there are none, or where more steps can be taken now. Hooks stand where the runs
        left them: what they have seen, such as the best parameters, is part of a result.
        """
        entry = self.entry
        if entry is None or "results" not in entry:
            return None
        outcomes = [result[1] for result in entry["results"]]
        goes_on = Outcome.BUDGET in outcomes and entry.get("state") is not None
        # One that others have followed had its time.
        is_last = self.session is not None and self.number == len(self.session.log) - 1
        if goes_on and is_last and entry["step"] < max_steps:
            return None
        _restore_hooks(hooks, entry, like[0])
        return [
            (restored_tree(start, result[0]), *result[1:])
            for start, result in zip(like, entry["results"], strict=True)
        ]

    def restored(self, driver: Any, hooks: tuple[Any, ...], start: Position) -> Position:
        """Put driver and hooks where they were; ``start`` where there is nothing to go on from."""
        entry = self.entry
        if entry is None or entry.get("state") is None:
            return start
        driver.restore(entry["state"])
        _restore_hooks(hooks, entry, driver.params(0))
        return Position(entry["outcomes"], entry["tables"], entry["step"], entry["seconds"])

    def after_chunk(self, driver: Any, hooks: tuple[Any, ...], position: Position) -> list[Outcome]:
        """Save where it is time; the outcomes, INTERRUPTED where a signal asks the runs to end."""
        session, outcomes = self.session, position.outcomes
        if session is None or not session.is_due():
            return outcomes
        self._write(session, self._under_way(driver, hooks, position))
        session.save()
        if not session.stopped_by or Outcome.RUNNING not in outcomes:
            return outcomes
        session.did_stop = True
        return [Outcome.INTERRUPTED if o is Outcome.RUNNING else o for o in outcomes]

    def finished(
        self, driver: Any, hooks: tuple[Any, ...], position: Position, results: list[Any]
    ) -> list[Any]:
        """Log the results; the state too where more steps could be taken from it."""
        session, outcomes = self.session, [result[1] for result in results]
        # Of an interrupted run what the last chunk has left is logged, or it begins again.
        if session is None or Outcome.INTERRUPTED in outcomes:
            return results
        stored = [_stored(result) for result in results]
        entry = {"identity": self.identity, "hooks": _hook_states(hooks), "results": stored}
        if Outcome.BUDGET in outcomes:
            entry = self._under_way(driver, hooks, position) | entry
        self._write(session, entry)
        return results

    def _write(self, session: Session, entry: dict[str, Any]) -> None:
        session.log[self.number :] = [entry]

    def _under_way(self, driver: Any, hooks: tuple[Any, ...], position: Position) -> dict[str, Any]:
        state = getattr(driver, "state", lambda: None)()
        return {
            "identity": self.identity,
            "state": state,  # None: the run begins again when it resumes
            "hooks": _hook_states(hooks),
            "outcomes": [_open(outcome) for outcome in position.outcomes],
            "tables": [[joined(table)] if table else [] for table in position.tables],
            "step": position.step,
            "seconds": position.seconds,
        }


def _hook_states(hooks: tuple[Any, ...]) -> dict[str, Any]:
    return {type(hook).__name__: hook.state() for hook in hooks if hasattr(hook, "state")}


def _restore_hooks(hooks: tuple[Any, ...], entry: dict[str, Any], like: Any) -> None:
    """Put hooks where they were, by name: others may be shown the steps now."""
    for hook in hooks:
        if (state := entry.get("hooks", {}).get(type(hook).__name__)) is not None:
            hook.restore(state, like)


def remembered(what: str, compute: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """``compute(*arrays)``, or what it gave in an earlier process of the same call.

    For work on the host that is no run of the loop: arrays in, an array or a tuple of them out.

    Parameters
    ----------
    what : str
        A name for it.
    compute : callable
        The same function in every process.
    *arrays : array
        What it depends on, beside what :func:`belongs` has said.

    Returns
    -------
    array, or tuple of arrays
        The answer.

    Raises
    ------
    Interrupted
        After it was saved, where a signal has asked the call to end.
    """
    beat()
    session = current_session()
    if session is None:
        return compute(*arrays)
    recording = Recording(lambda s: {"what": what, "input": s.identities.arrays(arrays)})
    if recording.entry is not None and "value" in recording.entry:
        return recording.entry["value"]
    found = compute(*arrays)
    session.log[recording.number :] = [{"identity": recording.identity, "value": found}]
    if session.is_due():
        session.save()
        if session.stopped_by:
            session.did_stop = True
            raise Interrupted("stopped before the answer was complete")
    return found


def belongs(model: str, data: Any) -> None:
    """Say what a call on the host computes, in words and arrays, before anything is remembered."""
    session = current_session()
    if session is not None:
        recording = Recording(lambda s: {"model": model, "data": s.identities.arrays(data)})
        session.log[recording.number :] = session.log[recording.number :] or [
            {"identity": recording.identity}
        ]


def _open(outcome: Outcome) -> Outcome:
    """An outcome, unless more steps or more time can go on from it."""
    return Outcome.RUNNING if outcome in (Outcome.INTERRUPTED, Outcome.BUDGET) else outcome


NOT_RECORDED = Recording(None)


def joined(table: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The rows of several chunks as one table."""
    return {name: np.concatenate([rows[name] for rows in table]) for name in table[0]}


def _stored(result: Any) -> Any:
    params, outcome, *rest = result
    return (leaves_of(params), outcome, *rest)


def leaves_of(tree: Any) -> list[Any]:
    """Leaves of a state, as arrays of the host; keys as they are."""
    return [
        leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.asarray(leaf)
        for leaf in map(_array, jax.tree.leaves(tree))
    ]


def _array(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "dtype") else np.asarray(leaf)


def restored_tree(tree: Any, leaves: list[Any]) -> Any:
    """A tree with other leaves, each where and of the dtype that the old one was.

    Raises
    ------
    InputError
        If numbers or shapes of leaves differ.
    """
    old, structure = jax.tree.flatten(tree)
    if len(old) != len(leaves) or any(
        np.shape(a) != np.shape(b) for a, b in zip(old, leaves, strict=True)
    ):
        raise InputError("the checkpoint holds a state of another shape; delete it to start anew")
    return jax.tree.unflatten(structure, [_placed(a, b) for a, b in zip(old, leaves, strict=True)])


def _placed(old: Any, new: Any) -> Any:
    if not isinstance(old, jax.Array):
        return np.asarray(new, np.asarray(old).dtype) if hasattr(old, "dtype") else type(old)(new)
    is_key = jnp.issubdtype(old.dtype, jax.dtypes.prng_key)
    values = new if is_key else np.asarray(new, old.dtype)
    if (mesh := current_mesh()) is not None:  # where runs leave what they have found
        return replicate(values, mesh)
    return values if is_key else jax.device_put(values, old.sharding)
