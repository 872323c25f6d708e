"""Policies by stochastic backpropagation: the examples of the manual, at small size."""

import runpy
from pathlib import Path

import jax
import numpy as np
import pytest

pytestmark = pytest.mark.float64_only
EXAMPLES = Path(__file__).parents[2] / "examples" / "sequences"


@pytest.fixture(scope="module")
def regulator():
    return runpy.run_path(str(EXAMPLES / "policy_lqr.py"))


@pytest.mark.filterwarnings("ignore::curvi.NotConvergedWarning")
@pytest.mark.parametrize("name", ["Hessian-free", "trust region"])
def test_ten_second_order_steps_find_the_gain_of_the_riccati_equation(name, regulator):
    result = regulator["solve"](regulator["METHODS"][name], 10)
    assert len(result.trace["value"]) <= 10
    np.testing.assert_allclose(result.params, regulator["riccati_gain"](), atol=1e-6)


@pytest.mark.filterwarnings("ignore::curvi.NotConvergedWarning")
@pytest.mark.slow
def test_a_few_steps_improve_the_policy_of_a_pendulum():
    pendulum = runpy.run_path(str(EXAMPLES / "policy_pendulum.py"))
    policy, key = pendulum["initial"](0), jax.random.key(0)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        before = float(pendulum["expected_cost"](policy, None, key))
        _, after = pendulum["learn"]("trust region", 0, seconds=60, max_steps=5)
    assert after < before
