"""Several devices and several processes compute what one does, and a stuck process is found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import curvi
from curvi.cli import _launch, main
from curvi.engine._drivers import CompiledDriver
from tests.compilations import num_compiled
from tests.engine import mesh_worker

pytestmark = pytest.mark.float64_only

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "tests" / "engine" / "mesh_worker.py"


def on_devices(out, what, count):
    flags = f"--xla_force_host_platform_device_count={count}"
    command = [sys.executable, "-m", "tests.engine.mesh_worker", str(out), what, str(count)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "XLA_FLAGS": flags}, check=True)
    return json.loads(out.read_text())


def in_processes(out, what, count):
    command = [sys.executable, "-m", "curvi", "launch", "--processes", str(count), "--"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [*command, str(WORKER), str(out), what],
        cwd=ROOT, env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def check_derivatives(found):
    for name, tolerance in (("float32", 1e-5), ("float64", 1e-12)):
        exact = mesh_worker.derivatives(None, np.float64)
        for part, expected in zip(found[name], exact, strict=True):
            error = np.linalg.norm(np.subtract(part, expected)) / np.linalg.norm(expected)
            assert error < tolerance
    one, same, other = found["digests"]  # a checkpoint knows its rows by them
    assert one == same
    assert one != other


@pytest.mark.slow
def test_derivatives_are_the_same_on_two_devices_and_in_two_and_four_processes(tmp_path):
    check_derivatives(on_devices(tmp_path / "devices", "derivatives", 2))
    for count in (2, 4):
        check_derivatives(in_processes(tmp_path / f"{count}", "derivatives", count))


@pytest.mark.slow
def test_a_process_that_fails_while_another_waits_for_it_ends_the_run(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        "import jax\nfrom curvi._core.processes import agreed\n"
        "if jax.process_index() == 1:\n    raise RuntimeError('boom')\nagreed(1.0)\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "curvi", "launch", "--", str(script)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "RuntimeError: boom" in done.stderr.splitlines()
    assert "process 1 of 2 failed" in done.stderr  # and not the first, whose sum it left
    assert not done.stdout


@pytest.mark.slow
def test_optima_are_the_same_on_one_two_and_four_of_each(tmp_path):
    one = on_devices(tmp_path / "1", "optima", 1)
    again = on_devices(tmp_path / "again", "optima", 1)
    assert one == again  # the same layout gives the same bits
    for number, (run, count) in enumerate([(on_devices, 2), (in_processes, 2), (in_processes, 4)]):
        found = run(tmp_path / f"other{number}", "optima", count)
        for name in ("fit", "coef"):
            assert np.allclose(found[name], one[name], rtol=0, atol=1e-8)
        assert found["mixed"] == one["mixed"]  # nothing is added up in another order
        for name in ("vae", "markov"):
            assert abs(found[name] - one[name]) < 0.05


def test_a_mesh_of_one_device_changes_nothing_and_others_are_refused():
    density = mesh_worker.target(jax.numpy.float64)
    meshes = (curvi.data_mesh(1), None)
    found, alone = (mesh_worker.derivatives(mesh, jax.numpy.float64) for mesh in meshes)
    for part, expected in zip(found, alone, strict=True):
        assert np.allclose(part, expected, rtol=1e-12)
    with pytest.raises(curvi.InputError, match="needs a DataTarget"):
        curvi.fit(lambda z: -(z**2), 0.0 * density.start[0], mesh=curvi.data_mesh())
    with pytest.raises(curvi.InputError, match="with an axis 'data'"):
        curvi.fit(density, mesh="both")
    with pytest.raises(curvi.InputError, match="JAX sees"):
        curvi.data_mesh(10_000)


def test_under_a_mesh_nothing_is_compiled_between_steps(monkeypatch):
    compiled, advance = [], CompiledDriver.advance

    def counted(driver, *given):
        before = num_compiled()
        chunks = advance(driver, *given)
        compiled.append(num_compiled() - before)
        return chunks

    monkeypatch.setattr(CompiledDriver, "advance", counted)
    target = mesh_worker.target(jax.numpy.float64)
    options = {"method": curvi.LBFGS(), "execution": "compiled", "max_steps": 40}
    curvi.fit(target, mesh=curvi.data_mesh(1), progress=False, on_failure="return", **options)
    assert len(compiled) > 2
    assert sum(compiled) == 0


def test_the_worker_that_keeps_the_others_waiting_is_named(tmp_path):
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    workers = [subprocess.Popen(command) for _ in range(3)]
    try:
        for rank, age in enumerate((30.0, 90.0, 20.0)):
            (tmp_path / str(rank)).touch()
            os.utime(tmp_path / str(rank), (time.time() - age,) * 2)
        rank, seconds = _launch.slowest(tmp_path, workers, 0.0)
        assert rank == 1
        assert 15 < seconds < 60
        workers[2].send_signal(signal.SIGSTOP)
        while not _launch.is_stopped(workers[2].pid):
            time.sleep(0.01)
        assert _launch.slowest(tmp_path, workers, 0.0)[0] == 2
    finally:
        _launch.end(workers[:2], signal.SIGTERM)
        workers[2].kill()
        workers[2].wait()
    assert _launch.slowest(tmp_path, workers, 0.0) is None


def test_a_stuck_worker_ends_the_run_within_its_deadline(tmp_path, capfd, monkeypatch):
    script = tmp_path / "stuck.py"
    script.write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    monkeypatch.setattr(_launch, "worker_program", [str(script)])
    began = time.monotonic()
    assert main(["launch", "--processes", "2", "--step-seconds", "1", "--", "anything"]) == 1
    assert time.monotonic() - began < 60
    assert "has made no progress for" in capfd.readouterr().err


def test_a_worker_that_fails_ends_the_run_with_its_code(tmp_path, capfd, monkeypatch):
    script = tmp_path / "fails.py"
    script.write_text(
        "import os, sys, time\n"
        "sys.exit(7) if os.environ['CURVI_LAUNCH_RANK'] == '1' else time.sleep(600)\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(_launch, "worker_program", [str(script)])
    assert main(["launch", "--", "anything"]) == 7
    assert "process 1 of 2 ended with code 7" in capfd.readouterr().err
    assert main(["launch", "--processes", "2"]) == 2
    assert "nothing to launch" in capfd.readouterr().err


def test_a_worker_that_fails_leaves_at_once_and_its_lines_are_shown(tmp_path, capfd, monkeypatch):
    codes = []

    def leave(code):
        codes.append(code)
        raise SystemExit(code)

    def broken(command):
        raise RuntimeError("boom")

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(_launch, "worker", broken)
    with pytest.raises(SystemExit):
        _launch.run_worker(["fit"])
    monkeypatch.setattr(_launch, "worker", lambda command: 2)
    with pytest.raises(SystemExit):
        _launch.run_worker(["fit"])
    assert codes == [70, 2]
    monkeypatch.setattr(_launch, "worker", lambda command: 1)  # did not converge: may still write
    assert _launch.run_worker(["fit"]) == 1
    (tmp_path / "said").write_text(capfd.readouterr().err, encoding="utf-8")
    _launch.said(tmp_path / "said")
    assert "RuntimeError: boom" in capfd.readouterr().err.splitlines()


def test_a_worker_that_was_stopped_is_named_where_the_others_gave_up(tmp_path, capfd):
    workers = [
        subprocess.Popen([sys.executable, "-c", text])
        for text in ("import os; os.abort()", "import time; time.sleep(60)")
    ]
    try:
        workers[1].send_signal(signal.SIGSTOP)
        workers[0].wait()
        while not _launch.is_stopped(workers[1].pid):
            time.sleep(0.01)
        command = _launch.LaunchCommand(command=("fit",))
        assert command._ended(0, workers[0].returncode, workers, tmp_path) == 1
        assert "process 1 of 2 is stopped" in capfd.readouterr().err
    finally:
        workers[1].kill()
        workers[1].wait()
    assert command._ended(0, -9, workers, tmp_path) == 137
    assert "process 0 of 2 ended with code -9" in capfd.readouterr().err


def test_what_libraries_print_while_processes_meet_is_no_part_of_the_answer(capfd):
    with _launch.printing_to_stderr():
        os.write(1, b"[Gloo] peers\n")
    os.write(1, b"answer\n")
    assert capfd.readouterr() == ("answer\n", "[Gloo] peers\n")


def test_a_signal_that_comes_before_there_are_workers_is_handed_on():
    with _launch.Asked() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        asked.workers = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])]
        asked.catch_up()
        assert asked.workers[0].wait() == -signal.SIGTERM


COUNTS_SIGNALS = """\
import os, pathlib, signal, sys, time
place = pathlib.Path({folder!r})
seen = []
signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
rank = os.environ["CURVI_LAUNCH_RANK"]
if {met}:
    pathlib.Path(os.environ["CURVI_LAUNCH_PULSE"]).touch()
(place / f"pid{{rank}}.new").write_text(str(os.getpid()))
os.rename(place / f"pid{{rank}}.new", place / f"pid{{rank}}")
while not seen:
    time.sleep(0.02)
time.sleep(0.5 + {longer} * (rank == "0"))  # the first one writes the files, or waits for another
(place / f"ended{{rank}}").write_text(str(len(seen)))
sys.exit(128 + seen[0])
"""


def signalled(folder, number, **given):
    """The code of a launcher that a signal has reached while its workers wait for one."""
    script = folder / "worker.py"
    script.write_text(COUNTS_SIGNALS.format(folder=str(folder), **given), encoding="utf-8")
    launcher = (
        "import sys\nfrom curvi.cli import _launch, main\n"
        f"_launch.worker_program = [{str(script)!r}]\n_launch._PATIENCE = 0.5\n"
        "sys.exit(main(['launch', '--', 'anything']))\n"
    )
    started = subprocess.Popen([sys.executable, "-c", launcher], start_new_session=True)
    try:
        while not all((folder / f"pid{rank}").exists() for rank in range(2)):
            assert started.poll() is None
            time.sleep(0.02)
        os.killpg(started.pid, number)  # as a terminal does, to its whole foreground group
        return started.wait(60)
    finally:
        started.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_handed_on_once_and_the_workers_are_waited_for(tmp_path, number):
    assert signalled(tmp_path, number, met=True, longer=3) == 128 + number
    assert [(tmp_path / f"ended{rank}").read_text() for rank in range(2)] == ["1", "1"]


def test_a_worker_that_waits_for_one_that_a_signal_has_ended_before_they_met_is_ended(tmp_path):
    assert signalled(tmp_path, signal.SIGINT, met=False, longer=600) == 128 + signal.SIGINT
    assert (tmp_path / "ended1").exists()
    assert not is_running(int((tmp_path / "pid0").read_text()))


LISTENERS = """\
import json, os, pathlib, subprocess, sys, time
import jax
fds = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
sockets = {os.readlink(fd) for fd in fds if os.path.islink(fd)}
lines = [l.split() for n in ("tcp", "tcp6") for l in open(f"/proc/net/{n}").readlines()[1:]]
listening = [l[1].split(":")[0] for l in lines if l[3] == "0A" and f"socket:[{l[9]}]" in sockets]
child = "from curvi.cli._launch import is_first_process, shared_mesh\\n"
child += "print(is_first_process(), shared_mesh())"
said = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout
place = pathlib.Path(sys.argv[1]) / str(jax.process_index())
place.with_suffix(".new").write_text(json.dumps([os.getpid(), listening, said]))
place.with_suffix(".new").rename(place)
time.sleep(120)
place.with_name(f"survived{jax.process_index()}").touch()
"""


def is_running(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux")
@pytest.mark.parametrize(
    ("options", "address", "number"),
    [([], "0100007F", signal.SIGTERM), (["--address", "127.0.0.2"], "0200007F", signal.SIGKILL)],
)
def test_workers_listen_where_they_were_told_and_end_with_their_launcher(
    tmp_path, options, address, number
):
    script = tmp_path / "listeners.py"
    script.write_text(LISTENERS, encoding="utf-8")
    command = [sys.executable, "-m", "curvi", "launch", *options, "--", str(script), str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as started:
        try:
            while not all((tmp_path / str(rank)).exists() for rank in range(2)):
                assert started.poll() is None
                time.sleep(0.05)
            workers = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
            for _, listening, child in workers:
                mapped = "0000000000000000FFFF0000"  # an address of IPv4 in a socket of IPv6
                assert {found.removeprefix(mapped) for found in listening} == {address}
                assert child.split() == ["True", "None"]  # no worker itself: it writes its files
            started.send_signal(number)
            started.stderr.read()  # which the workers, too, hold open until they end
            assert started.wait() == (128 + number if number == signal.SIGTERM else -number)
            while any(is_running(pid) for pid, *_ in workers):
                time.sleep(0.05)
            assert not list(tmp_path.glob("survived*"))
        finally:
            started.kill()


def test_an_address_of_another_machine_is_refused(capfd):
    for address in ("192.0.2.1", "everywhere", ""):
        assert main(["launch", "--address", address, "--", "fit"]) == 2
        assert "is no address of this machine" in capfd.readouterr().err


def test_workers_end_when_their_launcher_was_killed():
    code = (
        "import os, threading, time\nfrom curvi.cli import _launch\n_launch._LOOK_UP = 0.05\n"
        "threading.Thread(target=_launch.end_with, args=(os.getppid(), 60.0),"
        " daemon=True).start()\n"
        "print('began', flush=True)\ntime.sleep(60)\nprint('survived')\n"
    )
    launcher = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {code!r}])\n"
    with subprocess.Popen([sys.executable, "-c", launcher], stdout=subprocess.PIPE) as started:
        assert started.stdout.readline() == b"began\n"
        started.kill()
        assert started.stdout.read() == b""  # which the worker, too, holds open until it ends


def test_processes_with_different_rows_are_refused(tmp_path):
    script = tmp_path / "differ.py"
    script.write_text(
        "import curvi, jax, numpy as np\n"
        "mesh = curvi.data_mesh()\n"
        "X = np.random.default_rng(jax.process_index()).normal(size=(50, 2))\n"
        "model = curvi.BayesianLinearRegression(covariance='diagonal')\n"
        "print('fitted', model.fit(X, X[:, 0], mesh=mesh))\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "curvi", "launch", "--processes", "2", "--", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "fitted" not in done.stdout
    assert "the processes were given different rows" in done.stderr
