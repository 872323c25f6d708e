"""Fits leave nothing behind: no data, and no compiled code without limit."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import curvi
from curvi._core.programs import trace
from tests.compilations import num_compiled

STATM = Path("/proc/self/statm")
MANY_FITS = textwrap.dedent(
    """
    import pathlib, jax.numpy as jnp, numpy as np, curvi

    def resident():
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

    for number in range(520):
        rows = np.full(1000, float(number))
        densities = [
            lambda x: -0.5 * (x - number) ** 2,
            lambda x: -0.5 * jnp.sum((x - rows) ** 2),
            lambda x: -0.5 * (x - 3.0) ** 2,
        ]
        curvi.fit(densities[number % 3], jnp.zeros(()), progress=False)
        if number == 19:
            before = resident()
    print(resident() - before)
    """
)


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="reads the memory of a process from /proc")
def test_500_small_fits_grow_memory_by_less_than_50_mib():
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MANY_FITS],
        env=os.environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(run.stdout) < 50


def test_a_program_that_nobody_uses_is_forgotten(dtype):
    structure = weakref.ref(trace(lambda x: x**7, jnp.zeros((), dtype)).structure)
    gc.collect()
    assert structure() is None


@pytest.mark.filterwarnings("ignore::curvi.MisfitWarning")
def test_a_numpyro_model_that_is_wrapped_again_compiles_nothing(dtype):
    def model(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0.0, 5.0)), 1.0), obs=y)

    def fitted(shift):
        rows = np.arange(5, dtype=dtype) + shift
        return float(curvi.fit(curvi.from_numpyro(model, rows), progress=False).mean["mu"])

    fitted(0.0)
    first = num_compiled()
    second = fitted(1.0)
    np.testing.assert_allclose(second, 3.0 * 25 / (25 + 1 / 5), rtol=1e-3)
    # The constructor looks for a start with code of its own; the fit compiles nothing.
    for_the_constructor = num_compiled() - first
    before = num_compiled()
    curvi.from_numpyro(model, np.arange(5, dtype=dtype) + 2.0)
    assert num_compiled() - before == for_the_constructor
