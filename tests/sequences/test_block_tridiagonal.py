"""Cyclic reduction against dense linear algebra."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curvi.sequences._block_tridiagonal import Factor

pytestmark = pytest.mark.float64_only


def dense(diagonal, below):
    count, width = diagonal.shape[1:3]
    matrix = np.zeros((len(diagonal), count * width, count * width))
    for n in range(count):
        here = slice(n * width, (n + 1) * width)
        matrix[:, here, here] = diagonal[:, n]
        if n + 1 < count:
            after = slice((n + 1) * width, (n + 2) * width)
            matrix[:, after, here] = below[:, n]
            matrix[:, here, after] = np.swapaxes(below[:, n], 1, 2)
    return matrix


@settings(max_examples=40)
@given(
    points=st.integers(1, 2),
    count=st.integers(1, 12),
    width=st.integers(1, 3),
    seed=st.integers(0, 2**31 - 1),
)
def test_a_factor_agrees_with_the_dense_matrix(points, count, width, seed):
    rng = np.random.default_rng(seed)
    below = rng.normal(size=(points, count - 1, width, width))
    roots = rng.normal(size=(points, count, width, width))
    diagonal = roots @ np.swapaxes(roots, 2, 3) + 8 * width * np.eye(width)
    matrix, factor = dense(diagonal, below), Factor(diagonal, below)
    inverse, size = np.linalg.inv(matrix), count * width
    np.testing.assert_allclose(factor.log_det, np.linalg.slogdet(matrix)[1], rtol=1e-10)
    rhs = rng.normal(size=(points, count, width, 2))
    solved = factor.solve(rhs).reshape(points, size, 2)
    np.testing.assert_allclose(solved, inverse @ rhs.reshape(points, size, 2), atol=1e-11)
    blocks = np.stack(
        [
            inverse[:, n * width : (n + 1) * width, n * width : (n + 1) * width]
            for n in range(count)
        ],
        axis=1,
    )
    np.testing.assert_allclose(factor.selected_inverse(), blocks, atol=1e-12)
    identity = np.eye(size).reshape(1, count, width, size)
    root = factor.sample(np.broadcast_to(identity, (points, count, width, size)))
    root = root.reshape(points, size, size)
    np.testing.assert_allclose(root @ np.swapaxes(root, 1, 2), inverse, atol=1e-12)


@pytest.mark.parametrize("width", [1, 2])
def test_a_matrix_that_is_not_positive_definite_is_refused(width):
    diagonal = np.tile(np.eye(width), (1, 3, 1, 1))
    below = np.tile(2 * np.eye(width), (1, 2, 1, 1))
    with pytest.raises(np.linalg.LinAlgError):
        Factor(diagonal, below)
