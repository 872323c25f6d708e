"""Hessian-free steps: the second sample, the growth of the batch, the Kronecker metric."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi.engine import ObjectiveProblem, Resources
from curvi.linalg import CGPath, DenseMap
from curvi.solvers._factors import layer_factors
from curvi.solvers._hessian_free import _LONGEST, _measured, _Sampled
from curvi.solvers._kronecker import (
    first_sides,
    kronecker_metric,
    mean_curvature,
    renewed_sides,
)
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

    problem = ObjectiveProblem(second, None, fixed_key=True)
    state = curvi.HessianFree(preconditioner=None).init(problem, params, None)
    state, nothing = state._replace(damping=damping), jnp.asarray(0.0)
    move = jax.jit(
        lambda: _measured(
            path,
            state,
            _Sampled(nothing, g, DenseMap(mine, params)),
            _Sampled(nothing, h, DenseMap(other, params)),
            second,
        )
    )()
    lengths = np.linspace(0, _LONGEST, 3001)
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
