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


@pytest.mark.slow
def test_derivatives_are_the_same_on_two_devices_and_in_two_and_four_processes(tmp_path):
    check_derivatives(on_devices(tmp_path / "devices", "derivatives", 2))
    for count in (2, 4):
        check_derivatives(in_processes(tmp_path / f"{count}", "derivatives", count))


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
