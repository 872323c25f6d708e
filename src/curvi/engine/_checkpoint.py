"""Runs that survive: what a call has computed so far, in one file that it resumes from.

A call such as ``fit`` is a sequence of runs of the loop (starts, more draws, replicates), and all
that happens between them follows from them. So a checkpoint is a log: the results of the runs
that have ended, and the state of the one that is under way. A call that resumes takes the
results of the first from the log, restores the state of the other, and goes on; it computes the
same bits as a call that was never interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import jax
import numpy as np

from curvi._core import validation
from curvi._core.callbacks import own_exceptions
from curvi._core.errors import InputError, Terminated, warn_user
from curvi._core.meshes import checked_mesh
from curvi._core.processes import agreed, largest, of_all_processes
from curvi._core.run import Clock, Run, current_run, is_ctrl_c, within
from curvi.engine._identity import Identities, described, plain
from curvi.io import CHECKPOINT, FORMAT, Decoder, Encoder, read_file, versions, write_file

# What may differ from one call to the next: how long it runs, and what it shows. The runs compare
# their devices.
_FREE = {
    "max_steps", "time_budget", "progress", "on_failure", "on_step", "verbose", "max_epochs",
    "max_iter", "patience", "checkpoint", "mesh", "self",
}  # fmt: skip
_SAME_VERSIONS = ("curvi", "jax", "jaxlib", "numpy")


@dataclass(frozen=True)
class Checkpoint:
    """Where a call keeps its state, and how often.

    The same call with the same file resumes to the same bits. A checkpoint of another model, data,
    shape, dtype, seed or version is refused with what differs; more steps or more time may be
    given. The first Ctrl-C, and SIGTERM, let the call finish its step and save; then the one
    returns what there is, and the other raises :class:`curvi.Terminated`, which ends the process
    with code 143. A time budget counts anew in every process.

    Parameters
    ----------
    path : path
        The file. A call that finds its own checkpoint there resumes from it.
    every_seconds : float
        Time between two checkpoints; 0 writes one after every chunk of steps.
    resume : bool
        Whether to go on from a file that is there; otherwise it is replaced.

    Examples
    --------
    >>> import curvi
    >>> curvi.Checkpoint("run.safetensors", every_seconds=300.0).every_seconds
    300.0
    """

    path: str | os.PathLike[str]
    every_seconds: float = 60.0
    resume: bool = True

    def __post_init__(self) -> None:
        """Validate the time."""
        if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
            raise InputError(f"checkpoint is {self.path!r}; give the path of a file")
        validation.boolean(self.resume, "resume")
        if self.every_seconds != 0:
            validation.positive_number(self.every_seconds, "every_seconds")


class Session:
    """One call with a checkpoint: its log, the clock, and the signals that end it."""

    def __init__(self, policy: Checkpoint, call: dict[str, str]) -> None:
        self.policy, self.path = policy, Path(policy.path)
        self.call, self.identities = call, Identities()
        self.log: list[dict[str, Any]] = []  # entries of runs, in their order
        self.next_run = 0
        self.stopped_by, self.did_stop = 0, False
        self.result: Any = None  # of the call
        self.saved_at = time.perf_counter()
        self._handlers: dict[int, Any] = {}
        of_all_processes(b"here")  # nobody reads what the first of them is still writing
        if policy.resume and self.path.exists():
            self.log = self._loaded()
        else:
            self.save()  # a folder that cannot be written to is found out before the work
        self._check_agreement()

    def __enter__(self) -> Session:
        """Take the signals over, in the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._signalled)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give the signals back; after SIGTERM the process ends, with what was saved."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if error is not None and self.did_stop:
            error.add_note(f"the same call with checkpoint={str(self.path)!r} resumes")
        try:
            if self.did_stop or (self.stopped_by and error is None):
                self.say_where()
        finally:
            if self.stopped_by == signal.SIGTERM and (error is None or is_ctrl_c(error)):
                left = getattr(error, "result", self.result)
                raise Terminated(f"terminated; {self.path} holds the checkpoint", left) from error

    def say_where(self) -> None:
        """Warn that the call was stopped, and where its checkpoint is."""
        what = "SIGTERM" if self.stopped_by == signal.SIGTERM else "Ctrl-C"
        again = f"the same call with checkpoint={str(self.path)!r}"
        warn_user(
            f"stopped by {what}; {again} resumes where it was"
            if self.did_stop
            else f"{what} came after the last step; {again} repeats none of them",
            UserWarning,
        )

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """Ask the loop to end after the step that is under way; the second Ctrl-C does not wait."""
        if self.stopped_by and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        self.stopped_by = self.stopped_by or number

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint, or for the end; all processes find the same."""
        self.stopped_by = largest(self.stopped_by)
        late = time.perf_counter() - self.saved_at >= self.policy.every_seconds
        return bool(self.stopped_by or agreed(late))

    def save(self) -> None:
        """Write the log; only one of several processes does.

        Raises
        ------
        OSError
            If it cannot be written; the checkpoint before it is then as it was.
        """
        if jax.process_index() == 0:
            encoder = Encoder()
            document = {
                "format": FORMAT,
                "kind": CHECKPOINT,
                "versions": versions(),
                "call": self.call,
                "log": encoder.value(self.log),
            }
            write_file(self.path, document, encoder.arrays)
        self.saved_at = time.perf_counter()

    def _loaded(self) -> list[dict[str, Any]]:
        document, arrays = read_file(self.path)
        if document.get("kind") != CHECKPOINT:
            raise InputError(
                f"{self.path} holds a {document.get('kind')}, which is no checkpoint; choose "
                "another path"
            )
        before, now = document.get("versions"), versions()
        parts = (("", document.get("call"), self.call), ("version of ", before, now))
        for prefix, stored, given in parts:
            if not isinstance(stored, dict):
                raise InputError(f"{self.path} is not a complete checkpoint")
            names = _SAME_VERSIONS if prefix else sorted({*stored, *given})
            for name in names:
                if stored.get(name) != given.get(name):
                    self.refuse(prefix + name, stored.get(name), given.get(name))
        log = Decoder(arrays, self.path).value(document.get("log"))
        if not isinstance(log, list) or not all(isinstance(entry, dict) for entry in log):
            raise InputError(f"{self.path} is not a complete checkpoint")
        return log

    def _check_agreement(self) -> None:
        """All processes must go on from the same place: others would wait for each other."""
        places = [(entry.get("identity"), entry.get("step")) for entry in self.log]
        own = hashlib.sha256(repr(places).encode()).digest()
        if of_all_processes(own) != own * jax.process_count():
            raise InputError(
                f"the processes do not find the same checkpoint at {self.path}; give a path on a "
                "disk that all of them share, or delete the file on each machine to start anew"
            )

    def refuse(self, what: str, stored: Any, given: Any) -> None:
        """Raise InputError: the checkpoint belongs to something else."""
        raise InputError(
            f"{self.path} is the checkpoint of another call: {what} was {stored}, and is {given} "
            "now; choose another path, or delete the file to start anew"
        )


def current_session() -> Session | None:
    """The session of the call that is under way, if it has one."""
    session: Session | None = current_run().session
    return session


@contextlib.contextmanager
def checkpointed(checkpoint: Any, call: dict[str, str]) -> Iterator[Session | None]:
    """Run a block with a checkpoint, a path or a :class:`Checkpoint`; without one where it is None.

    Parameters
    ----------
    checkpoint : path, Checkpoint or None
        Where, and how often.
    call : dict
        What the block computes, in words: a checkpoint of anything else is refused.

    Yields
    ------
    Session or None
        The session.
    """
    if checkpoint is None:
        yield None
        return
    policy = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    with Session(policy, call) as session, within(session=session):
        yield session
        session.save()


@contextlib.contextmanager
def opened(call: dict[str, Any], name: str = "fit") -> Iterator[Run]:
    """Open the run of an entry point, whose body is a ``with`` block.

    It gives the call its clock and budget (``time_budget``), its devices (``mesh``) and its
    checkpoint (``checkpoint``), where it has these arguments. All others, and those of an
    estimator, are what the checkpoint belongs to.

    Parameters
    ----------
    call : dict
        Its arguments: ``locals()``, before there is anything else.
    name : str
        What it is called.

    Yields
    ------
    Run
        What :func:`curvi._core.run.current_run` returns in the block.
    """
    arguments = dict(call)
    seconds, mesh = arguments.get("time_budget"), arguments.get("mesh")
    if seconds is not None:
        validation.positive_number(seconds, "time_budget")
    changes: dict[str, Any] = {"clock": Clock(seconds, current_run().clock), "show": Run.show}
    if mesh is not None:
        changes["mesh"] = checked_mesh(mesh)
    checkpoint = arguments.get("checkpoint")
    described = {} if checkpoint is None else _described_call(name, arguments)
    with own_exceptions(), within(**changes), checkpointed(checkpoint, described) as session:
        if session is not None:
            session.result = arguments.get("self")
        try:
            yield current_run()
        except BaseException as error:
            is_ctrl_c(error)
            raise


def _described_call(name: str, arguments: dict[str, Any]) -> dict[str, str]:
    owner = arguments.get("self")
    if owner is not None:
        name = f"{type(owner).__name__}.{name}"
        options = inspect.signature(type(owner)).parameters
        arguments |= {option: getattr(owner, option) for option in options}
        if arguments.get("random_state", 0) is None:
            raise InputError(
                "checkpoint needs a number as random_state: without it a run that resumes would "
                "be another one"
            )
    words = {key: _words(value) for key, value in arguments.items() if key not in _FREE}
    return {"call": name, **words}


def _words(value: Any, *, many: int = 20) -> str:
    """Arrays and targets by their shapes, functions not at all: the runs compare their programs.

    ``many``: arrays that are not described one by one.
    """
    if hasattr(value, "dimension") and hasattr(value, "dtype"):
        return f"{type(value).__name__}, {value.dtype}[{value.dimension}], {value.num_rows} rows"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    if callable(value):
        return "a function"
    leaves = jax.tree.leaves(value)
    texts = any(isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OUSMm" for leaf in leaves)
    if hasattr(value, "columns") or texts or len(leaves) > many:
        return f"a table {np.shape(value)}" if len(leaves) == 1 else f"{len(leaves)} arrays"
    if leaves and all(hasattr(leaf, "shape") for leaf in leaves):
        return described(value)
    return plain(repr(value))[:200]
