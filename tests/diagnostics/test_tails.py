"""Tails that are heavier than draws show."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from curvi.diagnostics._tails import continued_sd

pytestmark = pytest.mark.float64_only


@pytest.mark.parametrize("df", [2.5, 3.0])
def test_the_sd_of_a_student_t_follows_from_its_order_and_quantiles(df):
    """Quantiles at the middles of equal shares are draws without noise."""
    draws = stats.t.ppf((np.arange(4000) + 0.5) / 4000, df)
    true = (df / (df - 2)) ** 0.5
    found, error = continued_sd(draws, df, 4000.0)
    assert draws.std() < 0.97 * true
    assert found == pytest.approx(true, rel=0.05)  # the tail is a Pareto tail far out alone
    assert continued_sd(draws, df, 1000.0)[1] == pytest.approx(2 * error)


def test_the_sd_of_a_pareto_tail_has_the_units_of_its_draws():
    draws = stats.t.ppf((np.arange(4000) + 0.5) / 4000, 2.5)
    found, error = continued_sd(draws, 2.5, 500.0)
    other, same = continued_sd(1e3 - 10 * draws, 2.5, 500.0)
    assert other == pytest.approx(10 * found)
    assert same == pytest.approx(error)
