"""Calibration: the level of its tests is what they say, and wrong posteriors are found out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import curvi
from curvi._core.errors import InputError
from curvi.inference._calibrate import judge, sign_flip_test
from tests.solvers.problems import generator, seed_of

pytestmark = pytest.mark.float64_only
ROWS = 4


def simulate(key):
    first, second = jax.random.split(key)
    truth = jax.random.normal(first, (2,))
    return truth, truth[None] + jax.random.normal(second, (ROWS, 2))


def log_likelihood(position, rows):
    return -0.5 * jnp.sum((rows - position[None]) ** 2, axis=1)


def right_prior(position):
    return -0.5 * jnp.sum(position**2)


def wrong_prior(position):
    return -0.5 * jnp.sum((position - 4) ** 2)


def build(data):
    return curvi.DataTarget(log_likelihood, data, right_prior, jnp.zeros(2))


def test_the_sign_flip_test_keeps_its_level_whatever_the_shape(key):
    """Rejections at 5 % in 1,500 tests are binomial, for uniform, narrow and two-pointed shapes."""
    rng = generator(key)
    shapes = (
        lambda: rng.uniform(-0.5, 0.5, 15),
        lambda: rng.standard_t(3, 15),
        lambda: rng.choice([-1.0, 1.0], 15) + 0.1 * rng.normal(size=15),
    )
    for draw in shapes:
        rejected = sum(sign_flip_test(draw(), rng, num_flips=199) <= 0.05 for _ in range(500))
        low, high = scipy.stats.binom.ppf([1e-7, 1 - 1e-7], 500, 0.05)
        assert low <= rejected <= high


def test_shift_and_width_are_told_apart(key):
    rng = generator(key)
    normal = rng.normal(size=(300, 3))
    u = scipy.stats.norm.cdf(normal * np.array([1.0, 1.0, 2.0]) + np.array([0.0, 1.0, 0.0]))
    found = judge(u, ["right", "shifted", "narrow"], 0, rng)
    assert found.bias[0] > 1e-6
    assert found.width[0] > 1e-6
    assert found.bias[1] < 0.001
    assert found.shift[1] > 0
    assert found.bias[2] > 1e-6
    assert found.width[2] < 1e-6
    assert found.spread[2] > 1.2
    assert not found.calibrated
    assert "NOT CALIBRATED" in found.summary()


def test_a_plain_bias_is_found_among_many_coordinates(key):
    """300 coordinates: 600 tests, whose smallest p-value by 4,999 flips alone would be 0.12."""
    rng = generator(key)
    u = rng.random((60, 300))
    u[:, 7] = rng.uniform(0.6, 1.0, 60)
    found = judge(u, [f"z[{i}]" for i in range(300)], 0, rng)
    assert found.bias[7] < 1e-6
    assert found.p_value < 0.01


def test_hoeffding_s_bound_is_never_below_the_exact_p_value(key):
    """With 12 values of one size all 4,096 patterns are known: the exact p-value is 2 / 4,096."""
    assert sign_flip_test(np.ones(12), generator(key), num_flips=1) >= 2 / 4096
    assert sign_flip_test(np.zeros(12), generator(key), num_flips=1) == 1.0


def test_a_truth_of_another_shape_is_refused():
    def wrong(key):
        truth, data = simulate(key)
        return truth[:1], data

    with pytest.raises(InputError, match=r"shapes \[\(1,\)\], the target has \[\(2,\)\]"):
        curvi.calibrate(wrong, build, num_simulations=10)


@pytest.mark.slow
def test_an_exact_posterior_is_calibrated_and_a_wrong_prior_is_not(key):
    seed = seed_of(key)
    good = curvi.calibrate(simulate, build, num_simulations=20, seed=seed)
    assert good.probabilities.shape == (20, 2)
    assert good.p_value > 1e-6
    bad = curvi.calibrate(
        simulate,
        lambda data: curvi.DataTarget(log_likelihood, data, wrong_prior, jnp.zeros(2)),
        num_simulations=20,
        seed=seed,
    )
    assert bad.p_value < 0.01
    assert (bad.shift < 0).all()
    with pytest.raises(InputError, match="num_simulations is 5"):
        curvi.calibrate(simulate, build, num_simulations=5)


@pytest.mark.slow
def test_the_level_of_calibration_is_right_with_fits_in_between(key):
    """On an exact family every single test rejects at its nominal 5 %."""
    rejected = total = 0
    for index in range(40):
        found = curvi.calibrate(
            simulate, build, num_simulations=20, seed=seed_of(key) + 997 * index
        )
        p_values = np.concatenate([found.bias, found.width])
        rejected += int((p_values <= 0.05).sum())
        total += p_values.size
    low, high = scipy.stats.binom.ppf([1e-6, 1 - 1e-6], total, 0.05)
    assert low <= rejected <= high
