"""Pareto k, relative ESS, corrected moments, and the verdict that follows from them."""

from __future__ import annotations

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi.diagnostics._evaluation import ImportanceWeights, smoothed_weights
from curvi.diagnostics._verdict import misfit_sentence
from tests.diagnostics.test_fit_result import result_of
from tests.solvers.problems import WIDTH, gaussian, generator


def result_at(mean, sd, dtype):
    """q = N(mean, sd^2) against a standard normal target."""
    target = gaussian(np.eye(WIDTH), np.zeros(WIDTH)).target(dtype)
    family = curvi.MeanField()
    params = family.init(jnp.full(WIDTH, mean, dtype), jnp.full(WIDTH, sd, dtype))
    return result_of(target, family, params)


def test_a_perfect_q_has_a_relative_ess_of_one_and_no_warning(dtype):
    result = result_at(0.0, 1.0, dtype)
    assert result.relative_ess > 0.999
    assert result.warnings == ()
    assert result.summary().startswith("converged\n")


def test_a_narrow_q_is_found_out_by_its_tail(dtype):
    """With q half as wide, ratios are Pareto with k = 1 - 1/4 in each of three coordinates."""
    result = result_at(0.0, 0.4, dtype)
    assert result.khat > 0.7
    assert result.relative_ess < 0.5
    assert any("does not match the target" in sentence for sentence in result.warnings)
    assert result.summary().startswith("converged, with warnings\n")


def test_importance_weights_correct_a_shifted_wide_q(dtype):
    """Ratios are bounded here; with a relative ESS of about a third, 6 errors are 6/sqrt(300)."""
    result = result_at(0.5, 1.4, dtype)
    assert result.khat < 0.7
    moments = result.importance()
    error = 6 / (1024 * result.relative_ess) ** 0.5
    assert np.abs(np.asarray(moments.mean)).max() < error
    assert np.abs(np.asarray(moments.sd) - 1).max() < error


@pytest.mark.float64_only
def test_the_warning_needs_both_a_heavy_tail_and_a_low_ess():
    def misfit(khat, ess):
        return ImportanceWeights(np.ones(1), khat, ess).misfit

    assert misfit(0.8, 0.5)
    assert misfit(float("nan"), 0.5)
    assert not misfit(0.8, 0.95)
    assert not misfit(0.6, 0.5)


@pytest.mark.float64_only
def test_ratios_outside_the_support_have_no_weight(key):
    ratios = generator(key).normal(size=200)
    ratios[3] = -np.inf
    found = smoothed_weights(ratios)
    assert found.weights[3] == 0
    assert found.weights.sum() == pytest.approx(1)
    assert smoothed_weights(np.full(64, np.nan)).relative_ess == 0


@pytest.mark.float64_only
def test_the_sentence_of_a_misfit_never_calls_it_a_good_fit():
    result = SimpleNamespace(
        misfit=True,
        khat=0.5,
        relative_ess=0.05,
        target=SimpleNamespace(dimension=2),
        family=curvi.MeanField(),
        correction=None,
    )
    sentence = misfit_sentence(result)
    assert "ESS above 0.9, or k below 0.7 and ESS above 0.25" in sentence
    assert "FullRank()" in sentence
    result.family = curvi.FullRank()
    assert "FullRank()" not in misfit_sentence(result)


@pytest.mark.float64_only
@pytest.mark.parametrize(
    ("family", "advice"), [(curvi.MeanField(), "LowRank(10)"), (curvi.LowRank(16), "LowRank(32)")]
)
def test_a_covariance_that_no_memory_holds_is_not_advised(family, advice):
    target, numbers = SimpleNamespace(dimension=100_000), {"khat": 0.95, "relative_ess": 0.1}
    result = SimpleNamespace(misfit=True, target=target, family=family, correction=None, **numbers)
    sentence = misfit_sentence(result)
    assert advice in sentence
    assert "FullRank" not in sentence


@pytest.mark.float64_only
def test_a_misfit_is_announced_at_the_line_of_the_user():
    def narrow(position):
        return -50.0 * (position[0] - position[1]) ** 2 - 0.1 * jnp.sum(position**2)

    with pytest.warns(curvi.MisfitWarning, match="q does not match") as caught:
        curvi.fit(narrow, jnp.ones(2), num_draws=32)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.float64_only
def test_ratios_that_all_but_vanish_beside_the_largest_are_an_infinite_tail():
    found = smoothed_weights(1e5 * np.linspace(-1.0, 1.0, 1000) ** 3)
    assert found.khat == float("inf")
    np.testing.assert_allclose(found.relative_ess, 1 / 1000)
    np.testing.assert_allclose(found.weights.sum(), 1)
