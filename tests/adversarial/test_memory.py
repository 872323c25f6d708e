"""What would not fit into memory is refused before anything is allocated, with its size."""

from __future__ import annotations

import time
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi.objective import fixed_draws, host_sample, plan_draws, sample_draws
from tests.adversarial.outcomes import refused

HUGE = 10**9
BUDGET = "1 GiB"
MOST_BYTES, MOST_SECONDS = 64 * 2**20, 5.0


def normal(position):
    return -0.5 * jnp.sum(position**2)


def likelihood(position, rows):
    return -0.5 * (rows - position) ** 2


@pytest.fixture(scope="module")
def small():
    return curvi.fit(normal, jnp.zeros(2))


@pytest.fixture(scope="module")
def wide():
    """A result in 100,000 dimensions that no fit was needed for."""
    family, target = curvi.MeanField(), curvi.Target(normal, jnp.zeros(10**5))
    return curvi.FitResult(
        target, family, curvi.TrustRegion(), family.init(target.start), curvi.Outcome.CONVERGED,
        "made by hand", 0.0, 0.0, {}, curvi.Draws(), 0, 0.0,
    )  # fmt: skip


FITS = {
    "FullRank in 50,000 dimensions": (50_000, {"family": curvi.FullRank()}, "FullRank()"),
    "FullRank with a number of draws": (
        50_000,
        {"family": curvi.FullRank(), "num_draws": 50_002},
        "MeanField()",
    ),
    "StudentT of full covariance": (
        50_000,
        {"family": curvi.StudentT(5.0, "full")},
        "StudentT(df=5.0",
    ),
    "LowRank of a large rank": (50_000, {"family": curvi.LowRank(20_000)}, "LowRank(rank=20000)"),
    "fixed draws": (2, {"num_draws": HUGE}, f"{HUGE} draws"),
    "fresh draws": (2, {"draws": curvi.Draws("iid", HUGE, fresh=True)}, f"{HUGE} draws"),
    "Sobol draws": (2, {"draws": "sobol", "num_draws": HUGE}, f"{HUGE} draws"),
    "draws of a stochastic method": (
        2,
        {"method": curvi.DSVI(), "num_draws": HUGE},
        f"{HUGE} draws",
    ),
    "starts": (2, {"num_starts": HUGE}, "fewer num_starts"),
    "secant pairs": (2, {"method": curvi.LBFGS(history=HUGE)}, "secant pairs"),
}


def refused_at_once(run, *words):
    """Refused with the size and the remedy, in little time and memory."""
    tracemalloc.start()
    began = time.perf_counter()
    try:
        with curvi.memory_budget(BUDGET):
            refused(run, curvi.MemoryBudgetError, "would take", "iB, more than", "1 GiB", *words)
        assert time.perf_counter() - began < MOST_SECONDS
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", FITS)
def test_a_fit_that_would_not_fit_is_refused_at_once(name):
    dimension, options, word = FITS[name]
    target = curvi.Target(normal, jnp.zeros(dimension))
    refused_at_once(lambda: curvi.fit(target, **options), word)


CALLS = {
    "sample": lambda small, wide: small.sample(HUGE),
    "sample of a wide position": lambda small, wide: wide.sample(10**4),
    "sample of Laplace": lambda small, wide: curvi.laplace(normal, jnp.zeros(2)).sample(HUGE),
    "sample of a family": lambda small, wide: small.family.sample(
        small.params, jax.random.key(0), HUGE
    ),
    "draw_report": lambda small, wide: small.draw_report(HUGE),
    "draw_report of wide gradients": lambda small, wide: wide.draw_report(10**4),
    "to_blackjax": lambda small, wide: small.to_blackjax(HUGE),
    "covariance": lambda small, wide: wide.covariance(),
    "linear-response covariance": lambda small, wide: wide.covariance(linear_response=True),
    "sample_draws": lambda small, wide: sample_draws(jax.random.key(0), HUGE, 2),
    "fixed_draws": lambda small, wide: fixed_draws(
        jax.random.key(0), curvi.Draws("sobol", HUGE), 2, small.family.base, np.float64
    ),
    "host_sample": lambda small, wide: host_sample(
        np.random.default_rng(0), HUGE, 2, small.family.base
    ),
    "plan_draws": lambda small, wide: plan_draws(curvi.MeanField(), 2, num_draws=HUGE),
    "init of a family": lambda small, wide: curvi.FullRank().init(jnp.zeros(50_000)),
    "calibrate": lambda small, wide: curvi.calibrate(
        lambda key: (jnp.zeros(2), 0),
        lambda data: curvi.Target(normal, jnp.zeros(2)),
        num_simulations=HUGE,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_would_not_fit_is_refused_at_once(name, small, wide):
    refused_at_once(lambda: CALLS[name](small, wide))


def test_an_export_that_would_not_fit_is_refused_at_once(small):
    pytest.importorskip("arviz")
    refused(lambda: small.to_arviz(10**12), curvi.MemoryBudgetError, "draws", "fewer")


def test_a_batch_larger_than_the_data_is_refused():
    target = curvi.DataTarget(likelihood, jnp.zeros(8), normal, jnp.zeros(()))
    words = ("batch_size is 1000000000", "8 rows")
    refused(lambda: curvi.fit(target, batch_size=HUGE), curvi.InputError, *words)

    def objective(params, batch, key):
        return jnp.mean((batch - params) ** 2)

    def run():
        return curvi.minimise(objective, jnp.zeros(()), data=jnp.zeros(8), batch_size=HUGE)

    refused(run, curvi.InputError, *words)


def test_laplace_in_many_dimensions_is_refused():
    refused(lambda: curvi.laplace(normal, jnp.zeros(50_000)), curvi.InputError, "at most 2000")


def test_a_larger_budget_lets_the_same_call_pass(small):
    with curvi.memory_budget("1 KiB"):
        refused(lambda: small.sample(100), curvi.MemoryBudgetError, "100 draws")
    with curvi.memory_budget("1 MiB"):
        assert small.sample(100).shape == (100, 2)
