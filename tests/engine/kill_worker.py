"""A process to be killed: a tiny stochastic minimisation with a checkpoint after every chunk.

``python -m tests.engine.kill_worker FILE OUT STEPS`` resumes from FILE if it is there, and writes
the parameters to OUT when it ends. With ``KILLS SEED`` behind it steps on the host, in children
that it kills itself: they start at once, because nothing is imported or compiled anew.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np


def objective(params, batch, key):
    """Noisy in rows and draws, so that a wrong step or seed shows in every bit."""
    import jax
    import jax.numpy as jnp

    noise = jax.random.normal(key, params.shape, params.dtype)
    return jnp.mean((batch @ params - 1.0) ** 2) + 0.1 * jnp.sum(jnp.cos(params + noise))


def minimum(checkpoint, steps):
    """The minimisation, the same in every process."""
    import curvi

    rows = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    return curvi.minimise(
        objective, np.zeros(3, np.float32), method=curvi.LBFGS(), data=rows, batch_size=10,
        max_steps=steps, progress=False, on_failure="return", execution="compiled",
        checkpoint=checkpoint,
    )  # fmt: skip


def result_bytes(result):
    """Parameters and objective of every step."""
    return np.asarray(result.params).tobytes() + result.trace["value"].tobytes()


class NoisySteps:
    """Steps on the host that need no compilation: each moves by noise of its own."""

    def __init__(self):
        self.params, self.count = np.zeros(3), 0

    def state(self):
        return [self.params, self.count]

    def restore(self, state):
        self.params, self.count = state

    def step(self, tolerance):
        from curvi.solvers import Info

        noise = np.random.default_rng([7, self.count]).normal(size=3)
        self.params, self.count = 0.99 * np.sin(self.params) + noise, self.count + 1
        return Info(float(self.params.sum()), 1.0, 1.0, 0, True, True, False, 0)


def on_host(file, steps, every_seconds=0.0):
    """The steps above through the loop, with a checkpoint after each."""
    from curvi.engine import Budget, Checkpoint, checkpointed, run_driver
    from curvi.engine._drivers import EagerDriver
    from curvi.engine._recording import Recording

    policy = None if file is None else Checkpoint(file, every_seconds=every_seconds)
    with checkpointed(policy, {"call": "noisy steps"}):
        recording = Recording(lambda _: {"model": "noisy"})
        driver = EagerDriver([NoisySteps()])
        return run_driver(driver, 1, Budget(0.0, steps), recording=recording)[0]


def kill_children(file, kills, steps, seed):
    """Fork a child that steps, kill it after its first checkpoint, and so on; then finish."""
    import safetensors.numpy  # noqa: F401  once, and not in every child

    import curvi.engine  # noqa: F401

    generator = np.random.default_rng(seed)
    for _ in range(kills):
        changed = file.stat().st_mtime_ns if file.exists() else 0
        child = os.fork()
        if not child:
            on_host(file, steps)
            os._exit(1)  # nobody killed it
        while not file.exists() or file.stat().st_mtime_ns == changed:
            time.sleep(0.0005)
        time.sleep(generator.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        if os.waitpid(child, 0)[1] != signal.SIGKILL:
            return "a child ended before it was killed"
    return on_host(file, steps, every_seconds=10.0)


if __name__ == "__main__":
    import curvi

    file, out, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    if len(sys.argv) > 4:
        result = kill_children(file, int(sys.argv[4]), steps, int(sys.argv[5]))
        if isinstance(result, str):
            sys.exit(result)
    else:
        result = minimum(curvi.Checkpoint(file, every_seconds=0), steps)
    out.write_bytes(result_bytes(result))
