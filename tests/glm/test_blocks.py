"""Rows in blocks: the same fit as a table in memory, however they are cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import curvi
from curvi._core.errors import InputError
from curvi.glm._design import Moments
from curvi.glm._rows import Streaming

pytestmark = pytest.mark.float64_only
ROWS, FEATURES = 90, 3
MODELS = {
    "logistic": curvi.BayesianLogisticRegression,
    "poisson": curvi.BayesianPoissonRegression,
    "linear": curvi.BayesianLinearRegression,
}


def table(name, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, FEATURES)) * [1.0, 5.0, 0.2] + [0.0, 3.0, -1.0]
    t = 0.5 * (X[:, 0] - 0.2 * X[:, 1])
    y = {
        "logistic": np.where(rng.logistic(size=ROWS) < t, "yes", "no"),
        "poisson": rng.poisson(np.exp(t)).astype(float),
        "linear": 3 + t + 0.3 * rng.normal(size=ROWS),
    }[name]
    return X, y, rng.choice([0.0, 1.0, 2.5], ROWS)


def pieces(cuts, *arrays):
    return list(zip(*(np.split(array, cuts) for array in arrays), strict=True))


def assert_same_fit(one, other):
    assert one.converged_
    assert other.converged_
    for name in ("coef_", "coef_sd_", "intercept_", "elbo_"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("prior", ["normal", "ard"])
@pytest.mark.parametrize("name", MODELS)
def test_blocks_give_the_fit_of_the_whole_table(name, prior):
    X, y, weight = table(name)
    options = {"prior": prior, "num_starts": 2, "random_state": 0}
    whole = MODELS[name](**options).fit(X, y, weight)
    blocks = pieces([10, 11, 60], X, y, weight)
    assert_same_fit(MODELS[name](**options).fit_blocks(lambda: iter(blocks)), whole)


@given(st.lists(st.integers(1, ROWS - 1), max_size=5, unique=True))
def test_how_rows_are_cut_does_not_change_their_moments(cuts):
    X, _, weight = table("linear")
    whole = Moments.of(X, weight)
    parts = [(A, w) for A, w in pieces(sorted(cuts), X, weight) if w.sum() > 0]
    merged = Moments.of(*parts[0])
    for part in parts[1:]:
        merged = merged.merged(Moments.of(*part))
    for one, other in zip(merged, whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


class InSmallBlocks(curvi.BayesianLogisticRegression):
    """Reads a table that is not copied in blocks of seven rows, and keeps what it was given."""

    _streaming = Streaming(numbers_per_block=7 * FEATURES)

    def _fit_observations(self, data):
        self.data = data
        return super()._fit_observations(data)


def test_a_memory_mapped_table_is_fitted_where_it_lies(tmp_path):
    X, y, weight = table("logistic")
    path = tmp_path / "table.dat"
    mapped = np.memmap(path, np.float64, "w+", shape=X.shape)
    mapped[:] = X
    one = np.ones(ROWS)
    from_disk = InSmallBlocks().fit(mapped, y, one)
    assert from_disk.data.streamed
    assert len(from_disk.data.blocks) == -(-ROWS // 7)
    assert all(np.shares_memory(block.X, mapped) for block in from_disk.data.blocks)
    assert_same_fit(from_disk, curvi.BayesianLogisticRegression().fit(X, y, one))
    weighted = InSmallBlocks().fit(mapped, y, weight)
    assert weighted.data.streamed
    assert_same_fit(weighted, curvi.BayesianLogisticRegression().fit(X, y, weight))


def test_a_table_in_memory_is_read_in_blocks_once_a_copy_would_be_too_large():
    X, y, weight = table("logistic")

    class NeverCopied(InSmallBlocks):
        _streaming = Streaming(largest_copy=X.nbytes // 3, numbers_per_block=7 * FEATURES)

    large, small = NeverCopied().fit(X, y, weight), NeverCopied().fit(X[::4], y[::4], weight[::4])
    assert large.data.streamed
    assert not small.data.streamed
    assert_same_fit(large, curvi.BayesianLogisticRegression().fit(X, y, weight))


def test_sparse_blocks_are_fitted():
    X, y, _ = table("logistic")
    X = np.where(np.abs(X) > 1, X, 0.0)
    blocks = [(sparse.csr_array(A), b) for A, b in pieces([40], X, y)]
    fitted = curvi.BayesianLogisticRegression().fit_blocks(blocks)
    assert_same_fit(fitted, curvi.BayesianLogisticRegression().fit(X, y))
    np.testing.assert_array_equal(fitted.classes_, ["no", "yes"])


def bad_blocks(case):
    X, y, weight = table("logistic")
    blocks = pieces([40], X, y, weight)
    return {
        "an iterator": (iter(blocks), "only once"),
        "no blocks": ([], "no rows"),
        "a number": (3, "function"),
        "no tuple": ([X], r"block 0 is not \(X, y\)"),
        "other columns": ([blocks[0], (X[:, :2], y)], "block 1 has 2 columns"),
        "not finite": ([blocks[0], (np.full_like(X, np.inf), y)], "block 1"),
        "other length": ([(X, y[:-1])], "block 0"),
        "negative weight": ([(X, y, -1 - weight)], "block 0"),
        "one class": ([(X, np.zeros(ROWS))], "one class"),
        "three classes": ([(X, np.arange(ROWS) % 3)], "two classes"),
    }[case]


@pytest.mark.parametrize(
    "case",
    [
        "an iterator",
        "no blocks",
        "a number",
        "no tuple",
        "other columns",
        "not finite",
        "other length",
        "negative weight",
        "one class",
        "three classes",
    ],
)
def test_blocks_that_cannot_be_fitted_are_rejected_by_name(case):
    blocks, sentence = bad_blocks(case)
    with pytest.raises(InputError, match=sentence):
        curvi.BayesianLogisticRegression().fit_blocks(blocks)


def test_a_pass_that_gives_other_rows_than_the_first_is_rejected():
    X, y, _ = table("linear")
    passes = []

    def source():
        passes.append(0)
        return iter([(X, y)] if len(passes) <= 2 else [(X[:-1], y[:-1])])

    with pytest.raises(InputError, match="same rows"):
        curvi.BayesianLinearRegression().fit_blocks(source)


@pytest.mark.parametrize("options", [{"method": "hfsgvi"}, {"covariance": "low-rank"}])
def test_blocks_are_for_newton_steps_without_a_low_rank(options):
    X, y, _ = table("logistic")
    with pytest.raises(InputError, match="need method='newton'"):
        curvi.BayesianLogisticRegression(**options).fit_blocks([(X, y)])
