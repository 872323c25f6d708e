"""Workers that are killed at random times resume to the bits of one that never was."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import SEED
from tests.engine import kill_models, kill_worker

pytestmark = pytest.mark.float64_only

ROOT = Path(__file__).parents[2]


def killed_runs(folder, kills, steps, generator):
    """Kill a worker at random times until it has ended; the bytes of its result."""
    file, out = folder / "run", folder / "out"
    return killed(["kill_worker", str(file), str(out), str(steps)], folder, kills, generator)


def killed(words, folder, kills, generator):
    """The same of any worker that keeps its checkpoint in ``run`` and its bytes in ``out``."""
    file, out, count = folder / "run", folder / "out", 0
    command = [sys.executable, "-m", f"tests.engine.{words[0]}", *words[1:]]
    while not out.exists():
        process = subprocess.Popen(command, cwd=ROOT)
        if count < kills:
            while not file.exists() and process.poll() is None:
                time.sleep(0.001)
            changed = file.stat().st_mtime_ns if file.exists() else 0
            while process.poll() is None and file.stat().st_mtime_ns == changed:
                time.sleep(0.001)  # its first checkpoint of this life
            time.sleep(generator.uniform(0.0, 0.05))
            process.kill()
            count += process.wait() == -signal.SIGKILL
        else:
            assert process.wait() == 0
        left = [path.name for path in folder.iterdir()]
        assert sum(name.endswith(".tmp") for name in left) <= 1
    assert sorted(path.name for path in folder.iterdir()) == ["out", "run"]
    return count, out.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("model", sorted(kill_models.MODELS))
def test_models_that_were_killed_resume_to_the_same_bits(tmp_path, model):
    found = {}
    for kills in (0, 3):
        folder = tmp_path / str(kills)
        folder.mkdir()
        words = ["kill_models", model, str(folder / "run"), str(folder / "out")]
        count, found[kills] = killed(words, folder, kills, np.random.default_rng(SEED))
        assert count or not kills
    assert found[3] == found[0]


@pytest.mark.slow
def test_two_hundred_kills_of_compiled_runs_change_no_bit_and_leave_nothing(tmp_path):
    steps, generator, done = 3_000, np.random.default_rng(SEED), 0
    (tmp_path / "whole").mkdir()
    _, expected = killed_runs(tmp_path / "whole", 0, steps, generator)
    for number in range(200):
        folder = tmp_path / str(number)
        folder.mkdir()
        count, found = killed_runs(folder, min(20, 200 - done), steps, generator)
        assert found == expected
        done += count
        if done >= 200:
            return
    pytest.fail(f"the workers ended before they could be killed: {done} kills")


def test_twelve_kills_change_no_bit_and_leave_nothing(tmp_path):
    file, out, steps = tmp_path / "run", tmp_path / "out", 2000
    command = [sys.executable, "-m", "tests.engine.kill_worker", file, out, steps, 12, SEED]
    done = subprocess.run(map(str, command), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == kill_worker.result_bytes(kill_worker.on_host(None, steps))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
