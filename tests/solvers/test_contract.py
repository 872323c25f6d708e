"""One contract for every method on every family.

Nearly all the time of a fit this small is spent on compiling it, so the cells
of the table are dealt out in three: each pass runs a third, in which every family and every method
occurs twice, and `make test-slow` runs in float64 all that the fast float64 pass leaves out.
"""

import os

import jax
import numpy as np
import optax
import pytest

import curvi
from curvi.diagnostics import evaluate_elbo
from curvi.families import Laplace
from tests.solvers.problems import generator, linear, seed_of

FAMILIES = {
    "mean-field": curvi.MeanField(),
    "full-rank": curvi.FullRank(),
    "low-rank": curvi.LowRank(2),
    "student": curvi.StudentT(5.0),
    "student-full": curvi.StudentT(5.0, covariance="full"),
    "laplace": curvi.LocationScale(Laplace()),
}
METHODS = {
    "trust-region": curvi.TrustRegion(),
    "hfsgvi": curvi.HFSGVI(),
    "hfsgvi-diagonal": curvi.HFSGVI(preconditioner="diagonal"),
    "lbfgs": curvi.LBFGS(),
    "dsvi": curvi.DSVI(),
    "adam": curvi.FirstOrder(optax.adam(0.05)),
}
PRECISION = os.environ.get("CURVI_TEST_DTYPE", "float64")


def cells():
    for i, family in enumerate(FAMILIES):
        for j, method in enumerate(METHODS):
            mine = (i + j) % 3 == (PRECISION == "float32")
            marks = [] if mine else [pytest.mark.slow]
            yield pytest.param(family, method, id=f"{family}-{method}", marks=marks)


@pytest.mark.filterwarnings("ignore::curvi.MisfitWarning")
@pytest.mark.parametrize(("family_name", "method_name"), list(cells()))
def test_every_method_fits_every_family_or_says_that_it_did_not(
    family_name, method_name, key, dtype
):
    family, method = FAMILIES[family_name], METHODS[method_name]
    target = linear(generator(key)).target(dtype)
    fixed = method_name in ("trust-region", "lbfgs")
    options = {} if fixed else {"num_draws": 64, "max_steps": 60}
    # optax.adam multiplies floats by integers: strict promotion refuses that, whoever calls it.
    with jax.numpy_dtype_promotion("standard" if method_name == "adam" else "strict"):
        result = curvi.fit(
            target, family=family, method=method, seed=seed_of(key), on_failure="return", **options
        )

    assert isinstance(result, curvi.FitResult)
    assert jax.tree.structure(result.params) == jax.tree.structure(family.init(target.start))
    for leaf in jax.tree.leaves((result.params, result.mean, result.sd)):
        assert np.isfinite(leaf).all()
        assert leaf.dtype == dtype
    assert result.mean.shape == result.sd.shape == (target.dimension,)
    assert result.converged == (result.outcome is curvi.Outcome.CONVERGED)
    assert result.outcome is not curvi.Outcome.RUNNING
    assert {len(column) for column in result.trace.values()} == {result.steps}
    np.testing.assert_array_equal(result.trace["step"], np.arange(result.steps))
    assert (np.diff(result.trace["seconds"]) >= 0).all()

    if fixed:
        assert result.converged, result.message
    # Algorithm 1 has no safeguard and may fail, but then it must say so; a mean field is easy.
    may_fail = method_name.startswith("hfsgvi") and family_name != "mean-field"
    if may_fail and result.outcome in (curvi.Outcome.DIVERGED, curvi.Outcome.NON_FINITE):
        return
    assert not result.outcome.is_failure, result.message
    first, first_error = evaluate_elbo(target, family, family.init(target.start), jax.random.key(0))
    error = np.hypot(first_error, result.elbo_se)
    if may_fail:  # within noise it may have stayed where it was
        assert result.elbo > first - 6 * error - 1
    else:
        assert result.elbo > first
