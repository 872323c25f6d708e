"""Sparse precisions against dense algebra, the Kalman smoother and dense solves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse

import curvi
from curvi.families import SparsePrecision
from curvi.families._sparse_host import SparseMap
from curvi.linalg._elimination import Elimination, eliminate
from curvi.linalg._sparse_symmetric import SparseSymmetric
from curvi.objective._curvature import find_curvature


def chain_and_groups(rng, length=23, groups=7):
    """A pattern of a chain, groups of two, a tree and two dense rows, its coordinates shuffled."""
    size = length + 2 * groups + 9 + 2
    graph = np.eye(size, dtype=bool)
    for i in range(length - 1):
        graph[i, i + 1] = True
    for g in range(groups):
        graph[length + 2 * g, length + 2 * g + 1] = True
    root = length + 2 * groups
    graph[root, root + 1 : root + 9] = True
    graph[-2:] = True
    shuffled = rng.permutation(size)
    graph = (graph | graph.T)[np.ix_(shuffled, shuffled)]
    return graph, np.flatnonzero(np.isin(shuffled, [size - 2, size - 1]))


def positive_definite(rng, graph):
    entries = np.where(graph, rng.normal(size=graph.shape), 0.0)
    entries = entries + entries.T
    return entries + np.diag(np.abs(entries).sum(axis=1) + 0.5)


def on_entries(matrix, structure):
    """A dense matrix as a sparse one."""
    ordered = matrix[np.ix_(structure.order, structure.order)]
    c = structure.num_dense
    low = ordered[c:, c:][structure.rows, structure.columns]
    diagonal = np.diagonal(ordered)[c:]
    return SparseSymmetric(structure, ordered[:c, :c], ordered[c:, :c], low, diagonal)


@pytest.mark.float64_only
def test_everything_agrees_with_dense_algebra(key):
    rng = np.random.default_rng(int(jax.random.bits(key)))
    graph, dense = chain_and_groups(rng)
    matrix, size = positive_definite(rng, graph), len(graph)
    structure = eliminate(sparse.csr_matrix(graph), dense)
    assert structure is not None
    assert len(structure.rows) < 4 * size
    given = on_entries(matrix, structure)
    np.testing.assert_allclose(given.dense(), matrix, atol=1e-12)
    root, warp = given.inverse_root(0.1), np.zeros((size, 0))
    parts = (root.block, root.coupling, root.links, root.scale)
    place = SparseMap(structure, np.arange(size) * 1.0, *parts, warp)
    np.testing.assert_allclose(place.precision().dense(), matrix, atol=1e-10)
    family, params = SparsePrecision(elimination=structure), place.params(np.float64)
    covariance = np.linalg.inv(matrix)
    np.testing.assert_allclose(family.covariance(params), covariance, atol=1e-10)
    np.testing.assert_allclose(family.sd(params) ** 2, np.diagonal(covariance), rtol=1e-9)
    assert place.log_det == pytest.approx(-0.5 * np.linalg.slogdet(matrix)[1], abs=1e-9)
    noise, pull = rng.normal(size=(2, 4, size))
    moved = place.forward(noise)
    one = jax.vmap(lambda e: family.transform(params, e))(jnp.asarray(noise))
    np.testing.assert_allclose(moved.positions, one, atol=1e-9)
    np.testing.assert_allclose(place.noise_of(moved.positions), noise, atol=1e-8)
    turned = jax.vjp(lambda e: family.transform(params, e), jnp.asarray(noise[0]))[1]
    back = turned(jnp.asarray(pull[0]))[0]
    np.testing.assert_allclose(place.back(moved, pull)[0], back, atol=1e-9)
    log_q = family.log_prob(params, moved.positions[0])
    assert log_q == pytest.approx(float(family.noise_log_prob(params, noise[0])))


@pytest.mark.float64_only
def test_scales_that_follow_the_dense_block_keep_map_and_gradients_together(key):
    rng = np.random.default_rng(int(jax.random.bits(key)))
    graph, dense = chain_and_groups(rng, 5, 3)
    structure = eliminate(sparse.csr_matrix(graph), dense)
    root = on_entries(positive_definite(rng, graph), structure).inverse_root(0.1)
    warp = 0.3 * rng.normal(size=(structure.num_locals, structure.num_dense))
    parts = (root.block, root.coupling, root.links, root.scale)
    place = SparseMap(structure, np.zeros(len(graph)), *parts, warp)
    family = SparsePrecision(elimination=structure, follows=True)
    params, noise = place.params(np.float64), jnp.asarray(rng.normal(size=len(graph)))
    moved = place.forward(np.asarray(noise)[None])
    np.testing.assert_allclose(moved.positions[0], family.transform(params, noise), atol=1e-10)
    jacobian = jax.jacobian(lambda e: family.transform(params, e))(noise)
    assert moved.log_det[0] == pytest.approx(float(np.linalg.slogdet(jacobian)[1]), abs=1e-9)

    def objective(e):
        z = family.transform(params, e)
        return -jnp.sum(jnp.cos(z)) + jnp.sum(family.scale.log_scales(params.scale_params, e))

    gradient = np.sin(moved.positions)
    np.testing.assert_allclose(
        place.back(moved, gradient)[0], jax.grad(objective)(noise), atol=1e-9
    )


def test_a_chain_is_eliminated_in_logarithmically_many_rounds_with_few_entries():
    for length in (100, 3000):
        beside = sparse.diags_array([np.ones(length - 1)] * 2, offsets=[-1, 1])
        found = eliminate(beside, np.empty(0, int))
        assert len(found.rows) <= 2.2 * length
        assert len(found.bounds) <= 2.5 * np.log2(length)
        again = Elimination.of_arrays(found.arrays())
        assert again == found
        assert hash(again) == hash(found)


def test_a_dense_pattern_is_refused():
    assert eliminate(sparse.csr_matrix(np.ones((400, 400))), np.empty(0, int)) is None
    with pytest.raises(curvi.InputError, match="damaged"):
        Elimination.of_arrays(
            {key: [0, 0] for key in ("order", "bounds", "rows", "columns", "own")}
        )


def hierarchical(rng, groups=40, rows=6):
    """A Gaussian model of groups with known variances: the log density, and its posterior."""
    code = np.repeat(np.arange(groups), rows)
    y = rng.normal(size=groups)[code] + rng.normal(size=len(code)) + 2.0

    def log_density(p):
        mean, effect = p["mean"], p["effect"]
        total = -0.5 * jnp.sum((jnp.asarray(y) - effect[code]) ** 2) - 0.5 * mean**2 / 25
        return total - 0.5 * jnp.sum((effect - mean) ** 2)

    return log_density, {"effect": jnp.zeros(groups), "mean": jnp.zeros(())}


@pytest.mark.float64_only
def test_on_a_gaussian_hierarchical_model_it_is_the_posterior(key):
    rng = np.random.default_rng(int(jax.random.bits(key)))
    log_density, position = hierarchical(rng)
    target = curvi.Target(log_density, position)
    result = curvi.fit(target, family=curvi.SparsePrecision(), progress=False)
    precision = -np.asarray(jax.hessian(target.log_prob)(jnp.zeros(target.dimension)))
    mean = np.linalg.solve(precision, jax.grad(target.log_prob)(jnp.zeros(target.dimension)))
    np.testing.assert_allclose(result.params.mean, mean, atol=1e-8)
    covariance = np.linalg.inv(precision)
    np.testing.assert_allclose(result.family.covariance(result.params), covariance, atol=1e-8)
    best = float(target.log_prob(jnp.asarray(mean)))
    size = target.dimension
    evidence = best + 0.5 * (size * np.log(2 * np.pi) + np.linalg.slogdet(covariance)[1])
    np.testing.assert_allclose(result.log_ratio, evidence, atol=1e-8)


def test_the_structure_is_found_and_checked(key):
    rng = np.random.default_rng(int(jax.random.bits(key)))
    log_density, position = hierarchical(rng)
    found = find_curvature(curvi.Target(log_density, position), rng)
    assert found.structure.num_dense == 1
    assert found.num_products == 2
    assert list(found.structure.order[:1]) == [40]
    assert not len(found.structure.rows)
    pairs = tuple((i, i + 1) for i in range(39))
    with pytest.raises(curvi.InputError, match="leave out"):
        curvi.fit(log_density, position, family=curvi.SparsePrecision(pairs=pairs), progress=False)
    with pytest.raises(curvi.InputError, match="not sparse"):
        curvi.fit(
            lambda x: -jnp.logaddexp(0.5 * jnp.sum(x**2), jnp.sum(x)),
            jnp.zeros(400),
            family=curvi.SparsePrecision(),
            progress=False,
        )


def test_structure_given_by_hand_and_the_order_of_coordinates_change_nothing(key, tmp_path):
    rng = np.random.default_rng(int(jax.random.bits(key)))
    log_density, position = hierarchical(rng, 12)
    family = curvi.SparsePrecision(globals_=("mean",), pairs=())
    by_hand = curvi.fit(log_density, position, family=family, progress=False)
    turned = rng.permutation(13)

    def other(x):
        z = jnp.zeros(13, x.dtype).at[turned].set(x)
        return log_density({"effect": z[:12], "mean": z[12]})

    found = curvi.fit(other, jnp.zeros(13), family=curvi.SparsePrecision(), progress=False)
    close = 1e-6 if found.target.dtype == np.float64 else 1e-2
    whole = np.append(by_hand.mean["effect"], by_hand.mean["mean"])
    np.testing.assert_allclose(np.asarray(found.mean), whole[turned], atol=close)
    path = tmp_path / "fit"
    found.save(path)
    again = curvi.load(path)
    assert again.family == found.family
    np.testing.assert_array_equal(again.sd, found.sd)


def test_a_smooth_chain_keeps_its_small_pivots():
    """A level that moves little: every round of elimination makes its pivots smaller."""
    length, step = 65, 0.01
    links = (np.eye(length) - np.eye(length, k=1))[:-1] / step
    matrix = np.eye(length) + links.T @ links
    structure = eliminate(sparse.csr_matrix(matrix != 0), np.empty(0, int))
    given = on_entries(matrix, structure)
    root = given.inverse_root(0.1, like=given)
    assert not root.raised
    exact = np.linalg.slogdet(matrix)[1]
    found = -2 * (np.sum(np.log(root.scale)) + np.sum(np.log(np.diagonal(root.block))))
    assert found == pytest.approx(exact, rel=1e-9)


def test_hubs_may_share_any_number_of_neighbours():
    """256 of them, which eight bits would count as none."""
    shared = 256
    size = shared + 2
    matrix = np.eye(size)
    matrix[:2, 2:] = matrix[2:, :2] = 0.01
    structure = eliminate(sparse.csr_matrix(matrix != 0), np.empty(0, int))
    root = on_entries(matrix, structure).inverse_root(0.1)
    exact = np.linalg.slogdet(matrix)[1]
    found = -2 * (np.sum(np.log(root.scale)) + np.sum(np.log(np.diagonal(root.block))))
    assert found == pytest.approx(exact, abs=1e-9)
