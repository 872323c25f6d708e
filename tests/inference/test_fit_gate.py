"""What curvi.fit refuses: each message says what, where and what to do.

In the float64 pass only, because the float32 pass checks types before the gate can.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core.errors import InputError
from tests.solvers.problems import linear

pytestmark = pytest.mark.float64_only

DATA = linear(np.random.default_rng(0)).target(jnp.zeros(()).dtype)
PER_ROW = curvi.Draws("iid", 2, fresh=True, per_row=True)


def log_density(position):
    return -0.5 * jnp.sum(position**2)


PLAIN = curvi.Target(log_density, jnp.zeros(3))


@pytest.mark.parametrize(
    ("target", "options", "sentence"),
    [
        (
            [1.0],
            {},
            r"target is a list; give a curvi\.Target, a curvi\.DataTarget or a log density",
        ),
        (log_density, {}, "position is missing; a plain log density needs position="),
        (log_density, {"position": jnp.array([0.0, np.nan])}, r"position\[1\] is nan; a starting"),
        (log_density, {"position": jnp.arange(2)}, "position has dtype int.*must be floating"),
        (PLAIN, {"family": "full"}, r"family is 'full'; give a family such as curvi\.MeanField"),
        (PLAIN, {"family": curvi.FullRank}, r"family is a class; did you mean FullRank\(\.\.\.\)"),
        (PLAIN, {"method": "newton"}, r"method is 'newton'; give a method such as"),
        (
            PLAIN,
            {"batch_size": 2},
            "batch_size needs a DataTarget; a plain log density has no rows",
        ),
        (DATA, {"batch_size": 13}, "batch_size is 13 but there are 12 rows; leave it out"),
        (DATA, {"batch_size": 0}, "batch_size is 0; it must be a positive integer"),
        (
            PLAIN,
            {"family": curvi.FullRank(), "num_draws": 3},
            r"3 fixed draw\(s\) cannot hold FullRank in 3 .*use num_draws >= 4",
        ),
        (PLAIN, {"num_draws": 0}, "num_draws is 0; it must be a positive integer"),
        (PLAIN, {"num_draws": 0, "method": curvi.HFSGVI()}, "num_draws is 0; it must be a posit"),
        (PLAIN, {"draws": "halton"}, "draws is 'halton'; choose one of 'iid', 'antithetic'"),
        (PLAIN, {"draws": PER_ROW}, "draws per row need a DataTarget; a plain log density"),
        (
            DATA,
            {"draws": curvi.Draws("iid", 2, per_row=True)},
            "made anew at every step; set fresh=True",
        ),
        (PLAIN, {"family": curvi.LowRank(3)}, r"rank is 3 but .* 3 coordinate\(s\); use a smaller"),
        (PLAIN, {"tolerance": 0}, "tolerance is 0; it must be positive and finite"),
        (PLAIN, {"tolerance": -1e-3}, r"tolerance is -0\.001; it must be positive and finite"),
        (PLAIN, {"time_budget": np.inf}, "time_budget is inf; it must be positive and finite"),
        (PLAIN, {"max_steps": 0}, "max_steps is 0; it must be a positive integer"),
        (PLAIN, {"on_failure": "ignore"}, "on_failure is 'ignore'; choose one of 'raise'"),
    ],
    ids=lambda item: "" if not isinstance(item, str) else item[:40],
)
def test_what_cannot_be_fitted_is_refused(target, options, sentence):
    with pytest.raises(InputError, match=sentence):
        curvi.fit(target, **options)


def test_a_position_replaces_the_start_of_a_target():
    with pytest.warns(curvi.NotConvergedWarning, match="budget"):
        result = curvi.fit(PLAIN, jnp.full(3, 7.0), method=curvi.LBFGS(), max_steps=1)
    # One step from 7 cannot reach 0: its first step is no longer than 1.
    assert (np.asarray(result.mean) > 5).all()
