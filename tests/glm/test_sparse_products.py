"""Tables with few non-zeros: the same numbers, however a table is stored, and the cheaper way."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import curvi
from curvi.glm import _sparse_rows
from curvi.glm._design import Columns, Moments
from curvi.glm._sparse_rows import SparseTable, _compressed, prefers_sparse
from curvi.objective._draws import host_generator


@pytest.fixture
def random(key):
    return host_generator(key)


def few_entries(random, shape, *, binary, share=0.3):
    values = np.ones(shape) if binary else random.normal(size=shape)
    return np.where(random.random(shape) < share, values, 0.0)


@pytest.mark.float64_only
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("standardize", [True, False])
def test_products_over_non_zeros_are_those_of_the_dense_table(random, binary, standardize):
    X = few_entries(random, (90, 6), binary=binary)
    X[:2] = 0.0  # rows without entries
    columns = Columns.of(
        Moments.of(X, np.ones(90)), np.float64, standardize=standardize, intercept=True
    )
    dense = columns.dense(X)
    table = SparseTable.of(columns.design(sparse.csr_array(X)), np.ones(90), np.ones(90))
    assert table.is_binary == binary
    mu, s = random.normal(size=7), random.random(7)
    a, b, c = random.normal(size=(3, 90))
    pairs = [
        *zip(table.predictor(mu, s), (dense @ mu, dense**2 @ s), strict=True),
        *zip(table.pull(a, b), (-(a @ dense), -(b @ dense**2)), strict=True),
        *zip(
            table.grams([a, b, c], single=False),
            (
                dense.T @ (a[:, None] * dense),
                dense.T @ (b[:, None] * dense**2),
                (dense**2).T @ (c[:, None] * dense**2),
            ),
            strict=True,
        ),
        (table.grams([c], single=False)[0], dense.T @ (c[:, None] * dense)),
    ]
    for found, expected in pairs:
        # Standardised entries have sizes of up to 1 / sd; rounding is relative to the largest.
        np.testing.assert_allclose(found, expected, atol=1e-11 * np.abs(expected).max())


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(
    "estimator", [curvi.BayesianLogisticRegression, curvi.BayesianPoissonRegression]
)
def test_a_table_has_one_optimum_whether_its_products_are_sparse_or_dense(
    random, dtype, binary, estimator, monkeypatch
):
    X = few_entries(random, (300, 5), binary=binary, share=0.2).astype(dtype)
    y = (random.random(300) < 0.4).astype(int)
    fits = {}
    for sparsely in (True, False):
        monkeypatch.setattr("curvi.glm._sparse_rows.prefers_sparse", lambda _, now=sparsely: now)
        for given in (X, sparse.csr_array(X)):
            model = estimator(prior_scale=0.5).fit(given, y)
            fits[sparsely, type(given)] = np.append(np.ravel(model.coef_), model.elbo_)
    (first, *others) = fits.values()
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-3 if dtype == np.float32 else 1e-5)


@pytest.mark.float64_only
def test_sparse_products_are_chosen_by_the_share_of_non_zeros_not_by_the_storage(random):
    one_hot = np.eye(50)[random.integers(50, size=(400, 4))].sum(axis=1).clip(max=1)
    full = random.normal(size=(400, 50))
    for table, expected in ((one_hot, True), (full, False)):
        assert prefers_sparse(table) == expected
        assert prefers_sparse(sparse.csr_array(table)) == expected


@pytest.mark.float64_only
def test_lists_of_pairs_that_would_be_too_long_are_not_made(random, monkeypatch):
    X = few_entries(random, (400, 50), binary=True, share=0.04)
    assert prefers_sparse(X)
    few = replace(_sparse_rows.PAIRS, most_bytes=1000)
    for function in (prefers_sparse, _sparse_rows.pairs_fit):
        monkeypatch.setitem(function.__kwdefaults__, "policy", few)
    assert not prefers_sparse(X)
    model = curvi.BayesianLogisticRegression().fit(sparse.csr_array(X), random.random(400) < 0.5)
    assert model.converged_


@pytest.mark.float64_only
def test_columns_far_from_zero_are_centred_before_they_are_squared(random):
    """A sparse table with a column such as a year, whose sd is small beside its mean."""
    X = few_entries(random, (300, 30), binary=True, share=0.03)
    X[:, 0] = 1e6 + random.normal(size=300)
    y = X[:, 0] - 1e6 + random.logistic(size=300) > 0
    assert prefers_sparse(X)
    near = X.copy()
    near[:, 0] -= 1e6
    fits = [curvi.BayesianLogisticRegression().fit(table, y) for table in (X, near)]
    np.testing.assert_allclose(fits[0].elbo_, fits[1].elbo_, rtol=1e-7)
    np.testing.assert_allclose(fits[0].coef_, fits[1].coef_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_is_compressed_as_scipy_does_it(key, order):
    rng = host_generator(key)
    X = np.asarray(rng.normal(size=(7, 5)) * (rng.random((7, 5)) < 0.3), order=order)
    X[2], X[0, 0] = 0.0, -0.0
    for table in (X, np.zeros((3, 4)), np.zeros((0, 4))):
        mine, theirs = _compressed(table), sparse.csr_array(table)
        np.testing.assert_array_equal(mine.indptr, theirs.indptr)
        np.testing.assert_array_equal(mine.indices, theirs.indices)
        np.testing.assert_array_equal(mine.data, theirs.data)
