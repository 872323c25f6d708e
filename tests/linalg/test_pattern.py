"""Structured precisions against dense linear algebra."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from curvi._core.errors import InputError, NumericalError
from curvi.linalg import ConstrainedFactor, Pattern, RowProducts, gram_entries
from curvi.linalg._layout import Alone
from curvi.linalg._ordering import Ordering

pytestmark = pytest.mark.float64_only


def chain(count, width, rng):
    """Consecutive blocks of a width, each touching the next."""
    blocks = np.arange(count * width).reshape(count, width)
    both = np.concatenate([blocks[:-1], blocks[1:]], axis=1) if count > 1 else blocks
    pairs = np.tril_indices(both.shape[1])
    return both[:, pairs[0]].ravel(), both[:, pairs[1]].ravel(), count * width, ()


def groups(count, width, rng):
    """Independent blocks beside a border of three."""
    blocks = np.arange(count * width).reshape(count, width)
    border = count * width + np.arange(3)
    both = np.concatenate([blocks, np.tile(border, (count, 1))], axis=1)
    pairs = np.tril_indices(both.shape[1])
    return both[:, pairs[0]].ravel(), both[:, pairs[1]].ravel(), count * width + 3, border


def nested(count, width, rng):
    """Many small blocks, each within one of three others of its size: a tree."""
    inner = 6 * count
    blocks = np.arange((inner + 3) * width).reshape(-1, width)
    outer = blocks[inner + rng.integers(0, 3, inner)]
    both = np.concatenate([blocks[:inner], outer], axis=1)
    pairs = np.tril_indices(2 * width)
    return both[:, pairs[0]].ravel(), both[:, pairs[1]].ravel(), blocks.size, ()


def crossed(count, width, rng):
    """Two factors whose levels meet in some cells, and an intercept."""
    other = 3 * width
    one, two = rng.integers(0, count, 4 * count), count + rng.integers(0, other, 4 * count)
    last = count + other
    every = np.arange(last + 1)
    rows, columns = np.concatenate([one, every]), np.concatenate([two, np.full(last + 1, last)])
    return rows, columns, last + 1, [last]


def lattice(count, width, rng):
    """A lattice with its diagonals."""
    index = np.arange(count * (width + 2)).reshape(count, -1)
    pairs = [
        (index[1:], index[:-1]),
        (index[:, 1:], index[:, :-1]),
        (index[1:, 1:], index[:-1, :-1]),
    ]
    return (*(np.concatenate([p[k].ravel() for p in pairs]) for k in (0, 1)), index.size, ())


def scattered(count, width, rng):
    """Entries anywhere."""
    size = count * width
    return *rng.integers(0, size, (2, 2 * size)), size, ()


KINDS = {f.__name__: f for f in (chain, groups, nested, crossed, lattice, scattered)}
# The orders of elimination, each forced upon every pattern.
ORDERS = {
    "chosen": Ordering(),
    "layers": Ordering(dense=0, leaf=1, thin=np.inf),
    "rounds": Ordering(dense=0, leaf=1, thin=0, fill=np.inf, dense_end=-1),
    "dissection": Ordering(dense=0, leaf=3, thin=0, soon=-1, dense_end=np.inf),
}
cases = st.tuples(
    st.sampled_from(sorted(KINDS)), st.integers(1, 14), st.integers(1, 4), st.integers(0, 2**31 - 1)
)


def positive_definite(pattern, lead, rng):
    """Values of diagonally dominant matrices, shuffled scales included."""
    values = rng.normal(size=(*lead, pattern.entries))
    values[..., pattern.diagonal] = 0
    totals = np.abs(pattern.dense(values)).sum(axis=-1)
    values[..., pattern.diagonal] = totals + rng.uniform(0.1, 2, totals.shape)
    return values


@settings(max_examples=150, deadline=None)
@given(cases, st.sampled_from([(), (1,), (3,), (2, 2)]), st.sampled_from(sorted(ORDERS)))
def test_a_factor_agrees_with_the_dense_matrix(case, lead, order):
    kind, count, width, seed = case
    rng = np.random.default_rng(seed)
    rows, columns, size, border = KINDS[kind](count, width, rng)
    shuffled = rng.permutation(size)
    pattern = Pattern(
        shuffled[np.asarray(rows)], shuffled[np.asarray(columns)], size,
        border=shuffled[np.asarray(border, int)], ordering=ORDERS[order],
    )  # fmt: skip
    values = positive_definite(pattern, lead, rng)
    dense = pattern.dense(values)
    inverse = np.linalg.inv(dense)
    factor = pattern.factor(values)
    assert factor.log_det.shape == lead
    np.testing.assert_allclose(factor.log_det, np.linalg.slogdet(dense)[1], rtol=1e-10, atol=1e-10)
    right = rng.normal(size=(*lead, size, 2))
    np.testing.assert_allclose(factor.solve(right), inverse @ right, rtol=1e-10, atol=1e-10)
    one = factor.solve(right[..., 0])
    np.testing.assert_allclose(one, (inverse @ right)[..., 0], rtol=1e-10, atol=1e-10)
    selected = inverse[..., pattern.rows, pattern.columns]
    np.testing.assert_allclose(factor.selected_inverse(), selected, rtol=1e-10, atol=1e-10)
    identity = np.broadcast_to(np.eye(size), (*lead, size, size))
    root = factor.sample(identity)
    np.testing.assert_allclose(root @ np.swapaxes(root, -1, -2), inverse, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(factor.sample(identity[..., 0]), root[..., 0], atol=1e-12)
    transposed = factor.slopes_in_noise(identity)
    np.testing.assert_allclose(transposed, np.swapaxes(root, -1, -2), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(factor.slopes_in_noise(identity[..., 0]), root[..., 0, :])


@settings(max_examples=40, deadline=None)
@given(cases)
def test_matrices_side_by_side_equal_one_by_one(case):
    kind, count, width, seed = case
    rng = np.random.default_rng(seed)
    rows, columns, size, border = KINDS[kind](count, width, rng)
    pattern = Pattern(rows, columns, size, border=border)
    values, right = positive_definite(pattern, (4,), rng), rng.normal(size=(4, size))
    together = pattern.factor(values)
    for point in range(4):
        alone = pattern.factor(values[point])
        np.testing.assert_allclose(together.log_det[point], alone.log_det, rtol=1e-12)
        solved = together.solve(right)[point]
        np.testing.assert_allclose(solved, alone.solve(right[point]), rtol=1e-11, atol=1e-12)
        selected = together.selected_inverse()[point]
        np.testing.assert_allclose(selected, alone.selected_inverse(), rtol=1e-11, atol=1e-12)
    places = np.array([2, 0, 2])
    some = together.at(places)
    np.testing.assert_array_equal(some.log_det, together.log_det[places])
    np.testing.assert_allclose(some.solve(right[places]), together.solve(right)[places], rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(cases, st.integers(1, 2))
def test_constraints_agree_with_a_basis_of_the_space_they_leave(case, count):
    kind, *_, seed = case
    rng = np.random.default_rng(seed)
    rows, columns, size, border = KINDS[kind](case[1] + 2, case[2], rng)
    pattern = Pattern(rows, columns, size, border=border)
    values = positive_definite(pattern, (2,), rng)
    constraints = rng.normal(size=(count, size))
    constrained = ConstrainedFactor(pattern.factor(values), constraints)
    basis = np.linalg.qr(constraints.T, mode="complete")[0][:, count:]
    inner = basis.T @ pattern.dense(values) @ basis
    inverse = basis @ np.linalg.inv(inner) @ basis.T
    log_det = np.linalg.slogdet(inner)[1]
    np.testing.assert_allclose(constrained.log_det, log_det, rtol=1e-9, atol=1e-9)
    right = rng.normal(size=(2, size))
    solved = (inverse @ right[..., None])[..., 0]
    np.testing.assert_allclose(constrained.solve(right), solved, rtol=1e-9, atol=1e-9)
    selected = inverse[..., pattern.rows, pattern.columns]
    np.testing.assert_allclose(constrained.selected_inverse(), selected, rtol=1e-9, atol=1e-9)
    root = constrained.sample(np.broadcast_to(np.eye(size), (2, size, size)))
    np.testing.assert_allclose(root @ np.swapaxes(root, 1, 2), inverse, rtol=1e-9, atol=1e-9)
    repeated = constrained.at(np.array([1, 1]))
    slopes = repeated.slopes_in_noise(right)
    expected = (np.swapaxes(root[1:], 1, 2) @ right[..., None])[..., 0]
    np.testing.assert_allclose(slopes, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(repeated.solve(right[[1, 1]]), solved[[1, 1]], rtol=1e-9, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 30), st.integers(1, 2), st.integers(0, 2**31 - 1))
def test_the_pseudo_determinant_is_the_product_of_the_other_eigenvalues(size, order, seed):
    differences = np.diff(np.eye(size), n=order, axis=0)
    scales = np.random.default_rng(seed).uniform(0.5, 2, size - order)
    walk = differences.T @ np.diag(scales) @ differences
    pattern = Pattern(*np.nonzero(walk), size)
    null = np.vander(np.linspace(-1, 1, size), order)
    values = walk[pattern.rows, pattern.columns]
    expected = np.log(np.linalg.eigvalsh(walk)[order:]).sum()
    got = pattern.log_pseudo_determinant(np.stack([values, 2 * values]), null)
    np.testing.assert_allclose(got, expected + np.array([0, (size - order) * np.log(2)]), rtol=1e-8)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 9), st.integers(0, 2**31 - 1))
def test_rows_add_to_the_matrix_and_have_variances(num_rows, size, seed):
    rng = np.random.default_rng(seed)
    A = sparse.random_array((num_rows, size), density=0.4, rng=rng, format="csr")
    pattern = Pattern(*gram_entries(A), size)
    products = RowProducts(pattern, A)
    weights, dense = rng.normal(size=(2, num_rows)), A.toarray()
    gram = pattern.dense(products.gram(weights))
    np.testing.assert_allclose(gram, np.einsum("bi,ij,ik->bjk", weights, dense, dense), atol=1e-12)
    covariance = rng.normal(size=(2, size, size))
    covariance = covariance + np.swapaxes(covariance, 1, 2)
    variances = products.variances(covariance[:, pattern.rows, pattern.columns])
    expected = np.einsum("ij,bjk,ik->bi", dense, covariance, dense)
    np.testing.assert_allclose(variances, expected, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(cases)
def test_a_matrix_times_vectors_is_the_dense_product(case):
    kind, count, width, seed = case
    rng = np.random.default_rng(seed)
    rows, columns, size, border = KINDS[kind](count, width, rng)
    pattern = Pattern(rows, columns, size, border=border)
    values, vectors = rng.normal(size=(3, pattern.entries)), rng.normal(size=(3, size))
    expected = (pattern.dense(values) @ vectors[..., None])[..., 0]
    np.testing.assert_allclose(pattern.multiply(values, vectors), expected, atol=1e-11)


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_point_that_is_not_positive_definite_does_not_spoil_the_others(kind, order):
    rng = np.random.default_rng(0)
    rows, columns, size, border = KINDS[kind](6, 2, rng)
    pattern = Pattern(rows, columns, size, border=border, ordering=ORDERS[order])
    values = positive_definite(pattern, (3,), rng)
    values[1, pattern.diagonal[size // 2]] = -1.0
    factor = pattern.factor(values)
    assert factor.log_det[1] == -np.inf
    alone = pattern.factor(values[[0, 2]])
    np.testing.assert_allclose(factor.log_det[[0, 2]], alone.log_det, rtol=1e-12)
    np.testing.assert_allclose(
        factor.selected_inverse()[[0, 2]], alone.selected_inverse(), rtol=1e-10, atol=1e-12
    )
    assert np.isfinite(factor.solve(np.ones((3, size)))).all()
    assert np.isfinite(factor.selected_inverse()).all()
    with pytest.raises(NumericalError, match="not positive definite"):
        pattern.factor(values[1])


def test_entries_outside_of_a_pattern_are_refused():
    with pytest.raises(InputError, match="0 to 2"):
        Pattern([3], [0], 3)
    with pytest.raises(InputError, match=r"no entry \(2, 0\)"):
        Pattern([1], [0], 3).positions(np.array([0]), np.array([2]))
    factor = Pattern([1], [0], 3).factor(np.array([2.0, 1.0, 2.0, 1.0]))
    with pytest.raises(InputError, match="repeat each other"):
        ConstrainedFactor(factor, np.ones((2, 3)))


def test_a_large_dense_front_keeps_its_root_in_the_place_of_the_inverse():
    rng, size = np.random.default_rng(3), 303
    rows, columns = np.tril_indices(size)
    pattern = Pattern(rows, columns, size, border=[0, 7], ordering=Ordering(dense=size))
    assert any(type(bucket.layout) is Alone for bucket in pattern.plan.fronts.buckets)
    values = positive_definite(pattern, (2,), rng)
    dense, factor = pattern.dense(values), pattern.factor(values)
    inverse, right = np.linalg.inv(dense), rng.normal(size=(2, size, 3))
    np.testing.assert_allclose(factor.log_det, np.linalg.slogdet(dense)[1], rtol=1e-12)
    np.testing.assert_allclose(factor.solve(right), inverse @ right, rtol=1e-10, atol=1e-12)
    selected = inverse[..., pattern.rows, pattern.columns]
    np.testing.assert_allclose(factor.selected_inverse(), selected, rtol=1e-9, atol=1e-12)
    root = factor.sample(np.broadcast_to(np.eye(size), (2, size, size)))
    np.testing.assert_allclose(root @ np.swapaxes(root, 1, 2), inverse, rtol=1e-9, atol=1e-12)
    single = factor.sample(right.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, factor.sample(right), rtol=1e-3, atol=1e-5)
    values[0, pattern.diagonal[size - 1]] = -1.0
    halved = pattern.factor(values)
    assert halved.log_det[0] == -np.inf
    assert halved.log_det[1] == pytest.approx(factor.log_det[1])


def test_places_of_large_matrices_do_not_overflow():
    """SciPy's indices have 32 bits, and products of two of them more."""
    size = 70_000
    chain = Pattern(np.arange(1, size), np.arange(size - 1), size)
    last = np.asarray([size - 1], np.int32)
    assert chain.positions(last, last)[0] == chain.entries - 1
