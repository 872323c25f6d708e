"""Newton steps on the host: rough Hessians, parameterisations, shortcuts, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_info

import curvi
from curvi._core.errors import Outcome
from curvi.engine import Budget
from curvi.families import MeanField
from curvi.glm._bound import Rows
from curvi.glm._dense import DenseBound
from curvi.glm._design import DenseDesign
from curvi.glm._fit import fit_glm
from curvi.glm._newton import run_newton
from curvi.glm._rows import StreamedRows, StreamedTables, WholeTable
from curvi.glm._stages import Options
from curvi.likelihoods import Bernoulli, Gaussian, Poisson

pytestmark = pytest.mark.float64_only
FREE_NOISE = -1e-12


def rows_of(X, y, precision=1.0, noise=1.0):
    one = np.ones(len(y))
    return Rows(DenseDesign(X), y, one, np.full(X.shape[1], precision), np.asarray(noise))


def binary_labels(random, logit):
    return np.where(random.uniform(size=logit.size) < 1 / (1 + np.exp(-logit)), 1.0, -1.0)


def test_powers_of_a_feature_defeat_rounded_hessians_but_not_the_fit():
    random = np.random.default_rng(1)
    x = random.uniform(size=6000)
    powers = x[:, None] ** np.arange(10)
    rows = rows_of(powers, binary_labels(random, 2 * x - 1), precision=1e-8)
    found = fit_glm(Bernoulli(), MeanField(), rows)
    assert found.outcome is Outcome.CONVERGED
    table = WholeTable(powers, rows.y, rows.weight)
    bound = DenseBound(False, rows.precision, Bernoulli(), table)
    mean, log_sd = (np.asarray(leaf) for leaf in found.q)
    again = run_newton(bound, bound.join(mean, np.exp(log_sd)), Budget(1e-8, 50))
    assert -bound.value(again.params) - found.elbo < 1e-6


def test_uncentred_columns_end_no_worse_than_in_one_parameterisation():
    random = np.random.default_rng(1)
    Z = random.normal(size=(1500, 8))
    X = np.column_stack([Z + 30, np.ones(1500)])
    rows = rows_of(X, Z[:, 0] + random.normal(size=1500), noise=FREE_NOISE)
    found = fit_glm(Gaussian(), MeanField(), rows, relevance=True)
    table = WholeTable(X, rows.y, rows.weight)
    bound = DenseBound(True, rows.precision, Gaussian(), table, FREE_NOISE, well_known=np.inf)
    start = bound.join(np.zeros(9), np.full(9, 1 / 3))
    single = run_newton(bound, start, Budget(1e-6, 1000))
    assert found.outcome is Outcome.CONVERGED
    assert found.elbo > -bound.value(single.params) - 0.01


@pytest.mark.parametrize("noise", [1e-2, 1e-5])
def test_little_noise_does_not_slow_a_relevance_prior_down(noise):
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 10))
    truth = np.r_[2.0, -1.0, 0.5, np.zeros(7)]
    y = X @ truth + noise * random.normal(size=200)
    found = fit_glm(Gaussian(), MeanField(), rows_of(X, y, noise=FREE_NOISE), relevance=True)
    assert found.outcome is Outcome.CONVERGED
    assert found.steps < 200
    np.testing.assert_allclose(found.q.mean, truth, atol=noise)


def test_switching_off_at_the_end_does_not_lower_the_bound():
    random = np.random.default_rng(3)
    X = random.normal(size=(400, 6))
    rows = rows_of(X, binary_labels(random, 2 * X[:, 0]))
    table = WholeTable(X, rows.y, rows.weight)
    bound = DenseBound(True, rows.precision, Bernoulli(), table)
    start = bound.join(np.zeros(6), np.full(6, 0.4))
    ended = run_newton(bound, start, Budget(1e-8, 300))
    alpha, _, sd = bound.split(ended.params)
    off = np.exp(ended.params[6:]) < 1e-8
    assert ended.outcome is Outcome.CONVERGED
    assert 1 <= off.sum() <= 5
    revived = bound.join(np.where(off, 0.0, alpha * sd), np.where(off, 1e-3, sd))
    assert bound.value(ended.params) <= bound.value(revived)


def test_bounds_of_two_likelihoods_can_share_a_table():
    random = np.random.default_rng(0)
    counts = random.poisson(1.0, 30).astype(float)
    table = WholeTable(random.normal(size=(30, 2)), counts, np.ones(30))
    params = np.zeros(4)
    DenseBound(False, np.ones(2), Gaussian(), table).value(params)
    shared = DenseBound(False, np.ones(2), Poisson(), table).value(params)
    fresh = WholeTable(table.matrix, counts, table.weight)
    assert shared == DenseBound(False, np.ones(2), Poisson(), fresh).value(params)


def test_fits_in_several_threads_leave_the_blas_as_it_was():
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 3))
    rows = rows_of(X, binary_labels(random, X[:, 0]))

    def limits():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    before = limits()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: fit_glm(Bernoulli(), MeanField(), rows).elbo, range(8)))
    assert limits() == before
    assert len(set(found)) == 1


def test_a_budget_of_steps_holds_over_all_stages():
    random = np.random.default_rng(10)
    X = np.column_stack([random.normal(size=(90, 3)), np.ones(90)])
    rows = rows_of(X, binary_labels(random, X[:, 0]))
    blocks = [(X[part], rows.y[part], rows.weight[part]) for part in (slice(37), slice(37, None))]
    streamed_rows = StreamedRows(StreamedTables(lambda: iter(blocks), 90), rows.precision, 1.0)

    def fitted(rows, **options):
        return fit_glm(Bernoulli(), MeanField(), rows, options=Options(**options))

    coarse, streamed = (fitted(data, coarse_rows=8) for data in (rows, streamed_rows))
    for budget in (1, 2, 5):
        found = fitted(rows, coarse_rows=8, max_steps=budget)
        assert found.outcome is Outcome.BUDGET
        assert found.steps <= budget
    fine = fitted(rows)
    assert fine.outcome is Outcome.CONVERGED
    assert len(fine.trace["step"]) == fine.steps
    for found in (coarse, streamed):
        assert found.outcome is Outcome.CONVERGED
        assert len(found.trace["step"]) < found.steps  # some were on few rows
        np.testing.assert_allclose(found.q.mean, fine.q.mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("passes", [3, 6, 40])
def test_an_interrupted_fit_keeps_what_it_has(passes):
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 3))
    y = binary_labels(random, 2 * X[:, 0])
    made = []

    def blocks():
        made.append(None)
        if len(made) == passes:
            raise KeyboardInterrupt
        return iter([(X, y, np.ones(60))])

    rows = StreamedRows(StreamedTables(blocks, 60), np.ones(3), 1.0)
    options = Options(num_starts=3, coarse_rows=8)
    found = fit_glm(Bernoulli(), MeanField(), rows, relevance=True, options=options)
    assert len(made) > passes
    assert found.outcome is Outcome.INTERRUPTED
    assert 1 <= len(found.elbos) < 3
    assert found.elbo == found.elbos.max()
    assert np.isfinite(found.elbos).all()
    assert len(found.trace["elbo"]) <= found.steps


@pytest.mark.float64_only
def test_a_stochastic_run_that_is_cut_short_warns():
    """Judged by the exact bound, whose step is compiled: once is enough."""
    random = np.random.default_rng(0)
    X = 1e4 * random.normal(size=(60, 3))
    model = curvi.BayesianLogisticRegression(
        method="dsvi", max_iter=1, standardize=False, random_state=0
    )
    with pytest.warns(ConvergenceWarning):
        model.fit(X, X[:, 0] > 0)
