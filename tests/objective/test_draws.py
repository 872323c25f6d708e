"""Draws have the moments that their kind promises, and plans refuse what cannot work."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import curvi
from curvi._core.errors import InputError
from curvi.families import Laplace, MultivariateTBase, Normal, StudentTBase
from curvi.objective import Draws, draw_noise, plan_draws, sample_draws, whiten

BASES = [Normal(), Laplace(), StudentTBase(5.0), MultivariateTBase(6.0)]
bases = pytest.mark.parametrize("base", BASES, ids=lambda b: type(b).__name__)


def close(dtype):
    return 1e-10 if dtype == jnp.float64 else 1e-4


@bases
def test_normalised_draws_have_mean_zero_and_the_variance_of_the_base(base, key, dtype):
    draws = np.asarray(sample_draws(key, 9, 5, base=base, dtype=dtype), float)
    np.testing.assert_allclose(draws.mean(axis=0), 0, atol=close(dtype))
    np.testing.assert_allclose((draws**2).mean(axis=0), base.variance, rtol=close(dtype))


@bases
@pytest.mark.parametrize("num_draws", [6, 7, 40])
def test_whitened_draws_have_exactly_the_identity_as_second_moment(base, num_draws, key, dtype):
    draws = sample_draws(key, num_draws, 5, kind="whitened", base=base, dtype=dtype)
    draws = np.asarray(draws, float)
    np.testing.assert_allclose(draws.mean(axis=0), 0, atol=close(dtype))
    moment = draws.T @ draws / num_draws
    np.testing.assert_allclose(moment, base.variance * np.eye(5), atol=close(dtype) * 10)


def test_antithetic_draws_come_in_pairs(key, dtype):
    draws = sample_draws(key, 6, 3, kind="antithetic", dtype=dtype)
    np.testing.assert_array_equal(draws[:3], -draws[3:])


@bases
def test_sobol_draws_follow_the_base_and_integrate_better_than_iid(base, key, dtype):
    draws = np.asarray(sample_draws(key, 1024, 2, kind="sobol", base=base, dtype=dtype), float)
    assert np.isfinite(draws).all()
    error = abs(np.cos(draws[:, 0]).mean() - _characteristic(base))
    assert error < 0.01  # six standard errors of iid draws would be 0.1


def _characteristic(base):
    """E cos(x) of one coordinate, by the quantiles of a fine grid."""
    uniform = (np.arange(200_000) + 0.5)[:, None] / 200_000
    if isinstance(base, MultivariateTBase):
        return np.cos(scipy.stats.t(base.df).ppf(uniform)).mean()
    return np.cos(base.from_uniform(uniform)).mean()


@pytest.mark.parametrize("kind", ["iid", "antithetic", "normalised", "whitened", "sobol"])
def test_the_same_key_gives_the_same_bits(kind, key, dtype):
    first = sample_draws(key, 8, 3, kind=kind, dtype=dtype)
    second = sample_draws(key, 8, 3, kind=kind, dtype=dtype)
    other = sample_draws(jax.random.fold_in(key, 1), 8, 3, kind=kind, dtype=dtype)
    np.testing.assert_array_equal(first, second)
    assert first.dtype == dtype
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("kind", ["iid", "antithetic", "normalised", "whitened"])
def test_draws_can_be_made_inside_jit(kind, key):
    make = jax.jit(lambda k: sample_draws(k, 8, 3, kind=kind))
    assert make(key).shape == (8, 3)


@given(dimension=st.integers(1, 6), extra=st.integers(1, 10), seed=st.integers(0, 2**31 - 1))
def test_whitened_draws_integrate_every_quadratic_exactly(dimension, extra, seed):
    key = jax.random.key(seed)
    dtype = jnp.zeros(()).dtype
    draws = sample_draws(key, dimension + extra, dimension, kind="whitened", dtype=dtype)
    matrix = jax.random.normal(key, (dimension, dimension), dtype)
    values = jax.vmap(lambda e: e @ matrix @ e + jnp.sum(e))(draws)
    size = float(jnp.abs(matrix).sum())
    assert abs(float(values.mean() - jnp.trace(matrix))) < close(dtype) * 10 * (1 + size)


@pytest.mark.parametrize(
    ("family", "dimension", "expected"),
    [
        (curvi.MeanField(), 4, Draws("whitened", 32)),
        (curvi.MeanField(), 124, Draws("whitened", 126)),
        (curvi.MeanField(), 400, Draws("normalised", 32)),
        (curvi.FullRank(), 4, Draws("whitened", 128)),
        (curvi.FullRank(), 100, Draws("whitened", 128)),
        (curvi.FullRank(), 5000, Draws("antithetic", 32, fresh=True)),
        (curvi.LowRank(40), 400, Draws("normalised", 42)),
    ],
)
def test_automatic_draws_suit_the_family(family, dimension, expected):
    assert plan_draws(family, dimension) == expected


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: plan_draws(curvi.FullRank(), 10, num_draws=10), "num_draws >= 11"),
        (lambda: plan_draws(curvi.FullRank(), 10, draws="iid", num_draws=5), "unbounded"),
        (lambda: plan_draws(curvi.LowRank(3), 10, num_draws=4), "num_draws >= 5"),
        (lambda: plan_draws(curvi.MeanField(), 3, draws="iid", num_draws=1), "unbounded"),
        (lambda: plan_draws(curvi.MeanField(), 9, draws="whitened", num_draws=9), ">= 10"),
        (lambda: plan_draws(curvi.MeanField(), 3, draws="quasi"), "choose one of"),
        (lambda: plan_draws(curvi.MeanField(), 3, num_draws=0), "positive integer"),
        (lambda: Draws("antithetic", 3), "come in pairs"),
        (lambda: Draws("normalised", 1), "cannot be normalised"),
        (lambda: Draws("sobol", 8, fresh=True), "made once on the host"),
        (lambda: whiten(jnp.zeros((3, 3))), "need at least 4"),
        (
            lambda: sample_draws(jax.random.key(0), 2, 30_000, kind="sobol"),
            "reach 21201 dimensions",
        ),
    ],
)
def test_impossible_plans_are_refused(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


def test_fresh_full_rank_draws_may_be_few():
    plan = plan_draws(curvi.FullRank(), 10, draws=Draws("iid", 1, fresh=True))
    assert plan.num_draws == 1


def test_draws_per_row_are_independent_sets(key, dtype):
    plan = Draws("iid", 4, fresh=True, per_row=True)
    noise = draw_noise(key, plan, curvi.LowRank(2), 3, dtype, num_rows=6)
    assert noise.shape == (4, 6, 5)
    assert len(np.unique(np.asarray(noise).reshape(24, 5), axis=0)) == 24
    with pytest.raises(InputError, match="need a DataTarget"):
        draw_noise(key, plan, curvi.MeanField(), 3, dtype)
