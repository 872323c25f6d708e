"""Hessian-free steps: the second sample, the growth of the batch, the Kronecker metric."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi.engine import ObjectiveProblem, Resources
from curvi.linalg import CGPath, DenseMap
from curvi.linalg._arithmetic import vdot
from curvi.solvers._kronecker import (
    first_sides,
    kronecker_metric,
    layer_factors,
    mean_curvature,
    renewed_sides,
)
from curvi.solvers._layered_steps import best_lengths, corrected
from curvi.solvers._rotated import (
    along,
    diagonal_layers,
    gauss_newton,
    passed,
    restored,
    rotated,
)
from curvi.solvers._second_sample import SECOND_SAMPLE, Sampled, measured
from curvi.vae import MLPObjective, initial_params
from curvi.vae._networks import principal_rotation

pytestmark = pytest.mark.float64_only


def white_problem(key):
    """Images in principal coordinates: the encoder's rows end with a constant."""
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    X = 1 / (1 + np.exp(-generator.standard_normal((200, 3)) @ generator.standard_normal((3, 9))))
    rotation = principal_rotation(X, directions=4)
    params = initial_params(generator, inputs=9, hidden=(5,), latent=2, dtype=np.float64)
    batch = (jnp.asarray(rotation.features(X)), jnp.asarray(X))
    return MLPObjective(white=True, decoder_l2=0.01), rotation.rotated(params), batch


@pytest.mark.slow
def test_the_metric_of_every_layer_is_the_dense_kronecker_product_with_damping_and_penalty(key):
    objective, params, batch = white_problem(key)
    start, zero = first_sides(objective, params), jnp.asarray(0, jnp.int32)
    sides = jax.jit(lambda p: renewed_sides(objective, p, start, (batch, key), zero))(params)
    metric = kronecker_metric(objective, sides, jnp.asarray(0.3))
    first, second = layer_factors(objective, params, batch, key, white=True)
    keys = jax.random.split(key, len(first))
    matrices = [
        jax.random.normal(k, m.shape) for k, m in zip(keys, objective.matrices(params), strict=True)
    ]
    applied = objective.matrices(metric.apply(objective.assemble(params, tuple(matrices))))
    solved = objective.matrices(metric.solve(objective.assemble(params, tuple(matrices))))
    traces = []
    for index, layer in enumerate(objective.layers(params)):
        a, g = (jnp.diag(f[0]) if f.shape[0] == 1 else f for f in (first[index], second[index]))
        dense = np.kron(a, g) + (0.3 + layer.decay) * np.eye(len(a) * len(g))
        vector = np.ravel(matrices[index])
        np.testing.assert_allclose(np.ravel(applied[index]), dense @ vector, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(
            np.ravel(solved[index]), np.linalg.solve(dense, vector), rtol=1e-8, atol=1e-9
        )
        traces.append(np.trace(np.kron(a, g)))
    size = sum(matrix.size for matrix in matrices)
    np.testing.assert_allclose(mean_curvature(objective, params, sides), sum(traces) / size)


def test_no_matrix_of_the_size_of_an_image_is_decomposed(key):
    objective, params, _ = white_problem(key)
    pixels, coordinates = 9, 5  # the constant is the fifth
    sides = first_sides(objective, params)
    sizes = [side.vectors.shape[0] for pair in sides for side in pair]
    assert sides[0][0].vectors.size == 0
    assert sides[-1][1].vectors.size == 0
    assert sides[0][0].values.size == coordinates
    assert sides[-1][1].values.size == pixels
    assert max(sizes) < pixels


def test_the_second_sample_chooses_the_iterate_and_how_far_to_go(key):
    """Against a search over all iterates and lengths of two quadratics."""
    keys = jax.random.split(key, 5)
    roots = [jax.random.normal(k, (6, 6)) for k in keys[:2]]
    mine, other = (root @ root.T + jnp.eye(6) for root in roots)
    g, h = (jax.random.normal(k, (6,)) for k in keys[2:4])
    damping = jnp.asarray(0.5)
    points = jnp.stack([jnp.zeros(6), -0.3 * g, -jnp.linalg.solve(mine + 0.5 * jnp.eye(6), g)])
    models = 0.5 * jnp.einsum("ki,ij,kj->k", points, mine + 0.5 * jnp.eye(6), points) + points @ g
    path = CGPath(points, models, jnp.asarray([True, True, True]), jnp.asarray(2), jnp.asarray(0))
    params = jax.random.normal(keys[4], (6,))

    def second(p):
        return h @ (p - params) + 0.5 * (p - params) @ other @ (p - params)

    nothing = jnp.asarray(0.0)
    move = jax.jit(
        lambda: measured(
            path,
            params,
            damping,
            Sampled(nothing, g, DenseMap(mine, params)),
            Sampled(nothing, h, DenseMap(other, params)),
            second,
        )
    )()
    lengths = np.linspace(0, SECOND_SAMPLE.longest, 3001)
    promised = [np.max(-lengths * (x @ h) - 0.5 * lengths**2 * (x @ mine @ x)) for x in points]
    chosen = points[int(np.argmax(promised))]
    delivered = -lengths * (chosen @ h) - 0.5 * lengths**2 * (chosen @ other @ chosen)
    best = int(np.argmax(delivered))
    np.testing.assert_allclose(move.step, lengths[best] * chosen, atol=1e-3 * np.abs(chosen).max())
    np.testing.assert_allclose(move.gain, delivered[best], atol=1e-5)
    np.testing.assert_allclose(move.value, second(params + move.step), rtol=1e-9, atol=1e-12)


def test_where_noise_outweighs_the_signal_the_sample_grows_and_its_batches_are_counted(key):
    """At the optimum every gradient is noise."""

    def objective(params, batch, key):
        del key
        return 0.5 * jnp.mean(jnp.sum((params[None, :] - batch) ** 2, axis=1))

    rows = jax.random.normal(key, (400, 8))
    method = curvi.HessianFree(preconditioner=None, curvature="hessian", max_growth=6)
    problem, resources = ObjectiveProblem(objective, 5, fixed_key=False), Resources(key, rows, None)
    state = method.init(problem, jnp.mean(rows, axis=0), resources)
    advance = jax.jit(lambda s, i: method.step(problem, s, resources, i, jnp.asarray(0.0)))
    read = 0
    for step in range(30):
        state, info = advance(state, jnp.asarray(step, jnp.int32))
        read += int(info.batches)
        assert int(state.batches) == read
    assert 1 < float(state.growth) <= 6
    away = float(jnp.sum((state.params - jnp.mean(rows, axis=0)) ** 2))
    assert away < 8 / 5  # one full step on a batch of five goes so far


def rotated_problem(key):
    """The white problem with sides that were estimated, and a batch passed through it."""
    objective, params, batch = white_problem(key)
    layers = diagonal_layers(objective, params)
    start, zero = first_sides(objective, params, layers), jnp.asarray(0, jnp.int32)
    sides = renewed_sides(objective, params, start, (batch, key), zero, layers)
    return objective, params, (batch, key), layers, sides


@pytest.mark.slow
def test_in_the_eigenbasis_gradient_and_products_are_those_of_the_objective(key):
    objective, params, sample, layers, sides = rotated_problem(key)
    value, gradient, operator = objective.gauss_newton(params, *sample)
    batch = passed(objective, params, sample, sides)
    np.testing.assert_allclose(batch.value, value, rtol=1e-10)
    for mine, known in zip(jax.tree.leaves(batch.gradient), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(mine, known, atol=1e-10)
    keys = jax.random.split(key, 2)
    vectors = [
        jax.tree.map(lambda leaf, k=k: jax.random.normal(k, leaf.shape), params) for k in keys
    ]
    turned = [rotated(objective.matrices(vector), sides) for vector in vectors]
    product = restored(gauss_newton(batch, layers, sides)(turned[0]), sides)
    for mine, known in zip(product, objective.matrices(operator(vectors[0])), strict=True):
        np.testing.assert_allclose(mine, known, atol=1e-9)
    expected = [[vdot(v, operator(w)) for w in vectors] for v in vectors]
    np.testing.assert_allclose(along(batch, tuple(turned), layers, sides), expected, rtol=1e-8)


def test_what_conjugate_gradients_add_solves_the_system_and_few_of_them_lower_the_model(key):
    keys = jax.random.split(key, 3)
    root = jax.random.normal(keys[0], (6, 6))
    dense = root @ root.T + jnp.eye(6)
    gradient, last = ((jax.random.normal(k, (6,)),) for k in keys[1:])

    def run(steps):
        ones = (jnp.diagonal(dense),)
        return corrected(lambda v: (dense @ v[0],), gradient, ones, last, jnp.asarray(steps))

    def model(x):
        return 0.5 * x @ dense @ x + gradient[0] @ x

    best = -gradient[0] @ last[0] / (last[0] @ dense @ last[0])
    start = jnp.clip(best, 0, 1) * last[0]
    after = [float(model(start + run(steps)[0][0])) for steps in (1, 3, 30)]
    values = [float(model(start)), *after]
    assert values[0] > values[1] > values[2] >= values[3]
    solution = -jnp.linalg.solve(dense, gradient[0])
    np.testing.assert_allclose(start + run(30)[0][0], solution, atol=1e-2)
    assert int(run(3)[1]) == 3


@pytest.mark.parametrize("seed", range(6))
def test_lengths_of_two_directions_are_the_best_within_their_bounds(seed):
    generator = np.random.default_rng(seed)
    root = generator.standard_normal((2, 2))
    curvatures, slopes = root @ root.T + 0.1 * np.eye(2), 2 * generator.standard_normal(2)
    found = np.asarray(best_lengths(jnp.asarray(slopes), jnp.asarray(curvatures)))
    first, second = np.meshgrid(np.linspace(0, 1, 401), np.linspace(0, 1.5, 601))
    points = np.stack([first.ravel(), second.ravel()], axis=1)

    def gain(point):
        return point @ slopes - 0.5 * np.sum((point @ curvatures) * point, axis=-1)

    assert np.all((found >= 0) & (found <= [1, 1.5]))
    assert gain(found) >= gain(points).max() - 1e-12
    assert np.abs(found - points[np.argmax(gain(points))]).max() < 0.1


def test_a_direction_without_curvature_is_left_out():
    curvatures = jnp.asarray([[0.0, 0.0], [0.0, 2.0]])
    np.testing.assert_allclose(best_lengths(jnp.asarray([0.0, 1.0]), curvatures), [0.0, 0.5])
