"""``curvi launch``: one command in several processes of this machine, and a watch over them.

JAX waits for ever for a process that is alive and stuck, so somebody outside has to look at the
clock. Every worker writes down when it last finished a chunk of steps; the one that is behind is
named, and the run is ended. With ``--checkpoint`` the same command goes on from there.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import tyro

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.processes import beat, join, launched
from curvi.cli._terminal import complain, pass_on

_LOOK_UP = 1.0  # seconds between two looks of a worker at its launcher
_CRASHED = 70  # code of a worker that an exception has ended
_BAD_INPUT = 2  # code of a command that could not do its work
_GOES_ON = "With --checkpoint the same command goes on from the last one"
worker_program = ["-m", "curvi.cli._launch"]
_VARIABLES = tuple(
    f"CURVI_LAUNCH_{name}"
    for name in ("RANK", "COUNT", "HOST", "PORT", "PULSE", "PARENT", "SECONDS")
)


@dataclass(frozen=True)
class LaunchCommand:
    """Run a command of curvi, or a script: curvi launch --processes 2 -- fit table.csv ...

    What stands after two dashes runs in several processes of this machine, with one device each,
    which share the rows. On a cluster no launcher is needed: JAX finds the other processes of
    SLURM, Kubernetes or Open MPI by itself.
    """

    processes: int = 2
    """Number of processes."""
    step_seconds: float = 300.0
    """Longest time without progress of a worker, after which the run is ended."""
    address: str = "127.0.0.1"
    """Address of this machine at which the processes listen for each other; at the default nobody
    else can reach them. Whoever can reach it can disturb the run."""
    command: tyro.conf.Suppress[tuple[str, ...]] = ()
    """What stands after two dashes: "fit ..." of curvi, or a script that ends in .py."""

    def run(self) -> int:
        """Start the workers and watch them; the code of the first one that fails."""
        validation.positive_integer(self.processes, "--processes")
        validation.positive_number(self.step_seconds, "--step-seconds")
        require_own_address(self.address)
        if not self.command:
            raise InputError("nothing to launch; write the command after two dashes")
        script = self.command[0]
        if script.endswith(".py") and not Path(script).is_file():
            raise InputError(f"there is no script {script}")
        with tempfile.TemporaryDirectory() as folder, Asked() as asked:
            asked.workers = workers = self._started(Path(folder))
            try:
                asked.catch_up()
                return self._watched(workers, Path(folder), asked)
            finally:
                end(workers, signal.SIGTERM)

    def _started(self, folder: Path) -> list[subprocess.Popen[bytes]]:
        shared = [str(self.processes), self.address, str(free_port(self.address))]
        ends, started = [str(os.getpid()), str(self.step_seconds)], []
        threads = str(max(1, len(cores()) // self.processes))
        given = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, **os.environ}
        for rank in range(self.processes):
            values = [str(rank), *shared, str(folder / str(rank)), *ends]
            with (folder / f"{rank}.said").open("wb") as kept:
                started.append(
                    subprocess.Popen(  # noqa: S603  the command is the user's own
                        [sys.executable, *worker_program, *self.command],
                        env={**given, **dict(zip(_VARIABLES, values, strict=True))},
                        stdout=None if rank == 0 else subprocess.DEVNULL,
                        stderr=None if rank == 0 else kept,
                        start_new_session=True,  # a terminal asks the launcher, which asks once
                    )
                )
        return started

    def _watched(
        self, workers: list[subprocess.Popen[bytes]], folder: Path, asked: Asked, *,
        look: float = 0.1,
    ) -> int:  # fmt: skip
        began = time.time()
        while True:
            codes = [worker.poll() for worker in workers]
            early = set(codes) != {None} and not (folder / "0").exists()
            if asked.by is not None and (early or None not in codes):
                return 128 + asked.by  # before all had met, nobody has anything to finish
            if all(code == 0 for code in codes):
                return 0
            failed = [rank for rank, code in enumerate(codes) if code not in (0, None)]
            if failed and asked.by is None:
                rank = next((rank for rank in failed if rank), 0)  # what the first said is shown
                return self._ended(rank, int(codes[rank] or 1), workers, folder)
            late = slowest(folder, workers, began)
            if late is not None and late[1] > self.step_seconds:
                complain(
                    f"process {late[0]} of {self.processes} has made no progress for "
                    f"{late[1]:.0f} s; the run is ended. {_GOES_ON}"
                )
                return 1
            time.sleep(look)

    def _ended(
        self, rank: int, code: int, workers: list[subprocess.Popen[bytes]], folder: Path
    ) -> int:
        """Say which process has ended the run, unless all end alike; the code of the launcher."""
        alive = [r for r, found in enumerate(workers) if found.poll() is None]
        stopped = [r for r in alive if is_stopped(workers[r].pid)]
        if stopped:  # the others miss its heartbeat, and give up
            complain(f"process {stopped[0]} of {self.processes} is stopped; the run is ended. "
                     f"{_GOES_ON}")  # fmt: skip
            return 1
        if code < 0 or code == _CRASHED or not same_end(workers[0], code):
            said(folder / f"{rank}.said")
            how = "failed" if code == _CRASHED else f"ended with code {code}"
            complain(f"process {rank} of {self.processes} {how}")
        if code == _CRASHED:
            return 1
        return code if code > 0 else 128 - code


class Asked:
    """Signals that ask the launcher to end: each is handed on to the workers, once.

    They finish their step, save and end by themselves, as long as that takes less than the longest
    time without progress.
    """

    def __init__(self) -> None:
        self.by: int | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Asked:
        """Take the signals over, where this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                if (number := getattr(signal, name, None)) is not None:
                    self._handlers[number] = signal.signal(number, self._hand_on)
        return self

    def __exit__(self, *error: object) -> None:
        """Give them back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def catch_up(self) -> None:
        """Hand on a signal that came before there were workers."""
        if self.by is not None:
            self._hand_on(self.by, None)

    def _hand_on(self, number: int, frame: Any) -> None:
        self.by = number if self.by is None else self.by
        for found in self.workers:
            if found.poll() is None:
                found.send_signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)


def same_end(first: subprocess.Popen[bytes], code: int, *, agreed: float = 2.0) -> bool:
    """Whether the first process, whose messages are shown, ends with the same code in time."""
    try:
        return first.wait(agreed) == code
    except subprocess.TimeoutExpired:
        return False


def said(path: Path, *, most_lines: int = 20) -> None:
    """Show the last lines that a worker has written, as far as it is another than the first."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if text:
        pass_on("\n".join(text.splitlines()[-most_lines:]))


def slowest(
    folder: Path, workers: list[subprocess.Popen[bytes]], began: float
) -> tuple[int, float] | None:
    """The worker that keeps the others waiting, and for how many seconds nobody has moved.

    All wait for the one that is stuck: it was quiet first, or the system has stopped it.
    """
    pulses = {}
    for rank, found in enumerate(workers):
        path = folder / str(rank)
        if found.poll() is None:
            pulses[rank] = path.stat().st_mtime if path.exists() else began
    if not pulses:
        return None
    rank = min(pulses, key=lambda r: (not is_stopped(workers[r].pid), pulses[r]))
    return rank, time.time() - max(pulses.values())


def is_stopped(number: int) -> bool:
    """Whether a process is stopped, on systems that tell."""
    try:
        text = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in ("T", "t")


def end(workers: list[subprocess.Popen[bytes]], number: int, *, patience: float = 5.0) -> None:
    """Ask workers to end, and end those that do not within the seconds of patience."""
    alive = [found for found in workers if found.poll() is None]
    for found in alive:
        found.send_signal(number)
    limit = time.monotonic() + patience
    for found in alive:
        try:
            found.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            found.kill()
            found.wait()


def require_own_address(address: str) -> None:
    """Raise InputError unless one can listen at an address of this machine."""
    try:
        ipaddress.ip_address(address)
        free_port(address)
    except (ValueError, OSError) as error:
        raise InputError(
            f"--address is {address!r}, which is no address of this machine ({error}); leave it "
            "out to use 127.0.0.1"
        ) from error


def free_port(address: str) -> int:
    """A port that nobody listens on."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as found:
        found.bind((address, 0))
        return int(found.getsockname()[1])


def worker(command: list[str]) -> int:
    """One process: join the others before anything is computed, then run the command."""
    # Taken out of the environment: what this process starts is no worker.
    given = (os.environ.pop(name) for name in _VARIABLES)
    rank, count, host, port, pulse, parent, seconds = given
    watch = threading.Thread(target=end_with, args=(int(parent), float(seconds)), daemon=True)
    watch.start()
    join(int(rank), Path(pulse))
    take_cores(int(rank), int(count))
    with printing_to_stderr():
        meet(int(rank), int(count), host, int(port))
    beat()
    if command[0].endswith(".py"):
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")
        return 0
    from curvi.cli import main

    return main(command)


def meet(rank: int, count: int, host: str, port: int, *, heartbeat: int = 10) -> None:
    """Connect the processes, at an address that only they need to reach.

    ``heartbeat``: seconds after which JAX misses a worker that died.
    """
    import jax
    from jax.experimental import multihost_utils

    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    handler = signal.getsignal(signal.SIGTERM)
    with gloo_listening_at(host):
        jax.distributed.initialize(
            place,
            count,
            rank,
            cluster_detection_method="deactivate",  # it would fill in what belongs to another job
            heartbeat_timeout_seconds=heartbeat,
            coordinator_bind_address=place,  # JAX would listen to the whole network
        )
        signal.signal(signal.SIGTERM, handler)  # JAX has taken it, and does nothing with it
        if count > 1:
            # Connections are made by the first sum, and given up where somebody is late for it:
            # make them now, before one process reads or compiles for longer than another.
            multihost_utils.sync_global_devices("curvi")
        else:
            jax.devices()


@contextlib.contextmanager
def gloo_listening_at(host: str) -> Iterator[None]:
    """Let the sums between processes listen there, too, and not where the machine's name leads.

    JAX has no option for it. The library is asked when JAX makes its devices.
    """
    from jaxlib import _jax as library

    make = library.make_gloo_tcp_collectives
    library.make_gloo_tcp_collectives = partial(make, hostname=host)
    try:
        yield
    finally:
        library.make_gloo_tcp_collectives = make


@contextlib.contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Keep what libraries print, such as how many peers they have found, out of the answer."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def run_worker(command: list[str]) -> int:
    """Run the command; a process that fails leaves at once.

    JAX would let it wait at its end for the others, which wait for it in the middle of a sum.
    """
    try:
        code = worker(command)
    except Exception:  # noqa: BLE001  whatever it was, nobody may wait for this process
        traceback.print_exc()
        leave(_CRASHED)
    if code == _BAD_INPUT:
        leave(code)
    return code


def leave(code: int) -> NoReturn:
    """End this process, and wait for nobody."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def end_with(parent: int, seconds: float) -> None:
    """Ask this process to end when the one that started it is gone, and end it if it does not."""
    while os.getppid() == parent:
        time.sleep(_LOOK_UP)
    signal.raise_signal(signal.SIGTERM)
    time.sleep(seconds)
    leave(128 + signal.SIGTERM)


def cores() -> list[int]:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def take_cores(rank: int, count: int) -> None:
    """Keep to a share of the cores, where there are enough.

    Threads of two workers on one core would wait for each other in every step.
    """
    if hasattr(os, "sched_setaffinity") and len(cores()) >= count:
        os.sched_setaffinity(0, cores()[rank::count])


def is_first_process() -> bool:
    """Whether this process writes the files; without a launcher it is the only one."""
    own = launched()
    return own is None or own.rank == 0


def shared_mesh() -> Any:
    """The mesh over all processes of a launch; None without one."""
    if launched() is None:
        return None
    from curvi._core.meshes import data_mesh

    return data_mesh()


if __name__ == "__main__":
    sys.exit(run_worker(sys.argv[1:]))
