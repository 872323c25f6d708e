"""Layers found in the trace of a network: the same gradients, and the Gauss-Newton blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import curvi
from curvi.solvers._kronecker import backward, layer_factors
from curvi.solvers._traced_layers import with_layers
from curvi.vae import VAEObjective
from tests.solvers.problems import generator

pytestmark = pytest.mark.float64_only


LAYOUT = ("NHWC", "HWIO", "NHWC")


def encode(params, x):
    """A convolution, a layer mapped row by row as equinox does it, and joined heads."""
    maps = jax.lax.conv_general_dilated(
        x[..., None], params["kernel"], (2, 2), "SAME", dimension_numbers=LAYOUT
    )
    flat = jax.nn.relu(maps + params["shift"][None, None, None]).reshape(len(x), -1)
    hidden = jax.vmap(lambda row: jnp.tanh(params["rows"] @ row))(flat)
    heads = hidden @ params["heads"].T
    return heads[:, :2], heads[:, 2:]


def decode(params, z):
    """A weight that is used twice, a compiled layer, and a transposed convolution."""
    z = jnp.tanh(jnp.tanh(z @ params["shared"]) @ params["shared"])
    small = jax.jit(lambda w, rows: jnp.tanh(rows @ w))(params["up"], z).reshape(len(z), 2, 2, 3)
    painted = jax.lax.conv_transpose(
        small, params["paint"], (2, 2), "SAME", dimension_numbers=LAYOUT
    )
    return painted[..., 0]


def network(key):
    rng = generator(key)
    shapes = {
        "kernel": (3, 3, 1, 2), "shift": (2,), "rows": (5, 8), "heads": (4, 5), "up": (2, 12),
        "paint": (3, 3, 3, 1), "shared": (2, 2),
    }  # fmt: skip
    params = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}
    return params, jnp.asarray(rng.random((6, 4, 4)))


def objective_of():
    penalised = ("up", "paint")
    return VAEObjective(
        encode, decode, num_draws=2, decoder_l2=0.1, penalised=lambda p: [p[n] for n in penalised]
    )


def test_products_and_convolutions_are_found_and_everything_else_is_left(key):
    params, x = network(key)
    layered = with_layers(objective_of(), params, x, key)
    names = [name for name, _ in sorted(params.items())]
    assert {names[place.leaf] for place in layered.places} == {
        "kernel", "rows", "heads", "up", "paint"
    }  # fmt: skip
    matrices = layered.matrices(params)
    back = layered.assemble(params, matrices)
    jax.tree.map(np.testing.assert_array_equal, back, params)
    decays = dict(zip(names, layered.decays, strict=True))
    assert decays["up"] == decays["paint"] == pytest.approx(0.1)
    assert decays["kernel"] == decays["shift"] == 0


def assert_backward_is_the_gradient(objective, layered, params, x, key):
    """Rows times deltas, put together, are the gradient of the loss; returns the rows."""

    @jax.jit
    def both(params):
        value, deltas, inputs = backward(layered, params, x, key)
        products = tuple(a.T @ d for a, d in zip(inputs, deltas, strict=True))
        plain = jax.value_and_grad(lambda p: objective.loss(objective.outputs(p, x, key), x))(
            params
        )
        return (value, layered.assemble(params, products)), plain, inputs

    ours, theirs, inputs = both(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), ours, theirs)
    return inputs


def test_rows_times_deltas_are_the_gradient_of_the_loss(key):
    params, x = network(key)
    objective = objective_of()
    assert_backward_is_the_gradient(
        objective, with_layers(objective, params, x, key), params, x, key
    )


def test_factors_are_moments_of_rows_and_of_deltas(key):
    """A decoder of one layer at probability 1/2, where the curvature of every logit is 1/4."""
    rng = generator(key)
    x = jnp.asarray(rng.random((40, 5)))
    params = {"decoder": jnp.zeros((2, 5)), "encoder": jnp.asarray(rng.normal(size=(5, 4)))}

    def read_twice(p, x):
        return (x @ p["encoder"])[:, :2], (x @ p["encoder"])[:, 2:]

    objective = VAEObjective(read_twice, lambda p, z: z @ p["decoder"])
    found = with_layers(objective, params, x, key)
    assert [place.leaf for place in found.places] == [0]  # the encoder is in two products
    inputs, outputs = layer_factors(found, params, x, key)
    np.testing.assert_allclose(np.diag(outputs[0]), 0.25, rtol=1e-9)
    mean, log_variance = objective.code(params, x)
    codes = np.asarray(mean + jnp.exp(log_variance / 2) * objective.noise(key, mean)[0])
    np.testing.assert_allclose(inputs[0], codes.T @ codes / 40, rtol=1e-9)


def recurrent(params, x):
    """Columns of an image one after another, backwards: a recurrence, and what it does not use."""

    def step(state, column):
        mixed = jnp.tanh(column @ params["into"] + state @ params["over"].T)
        return mixed, (mixed @ params["out"], state)

    start = jnp.zeros((len(x), 3))
    return jax.lax.scan(step, start, jnp.moveaxis(x, 2, 0), reverse=True)[1][0].mean(axis=0)


def test_products_in_a_loop_over_time_have_the_rows_of_all_steps(key):
    rng = generator(key)
    shapes = {"into": (4, 3), "over": (3, 3), "out": (3, 4), "decoder": (2, 16)}
    params = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}
    x = jnp.asarray(rng.random((6, 4, 4)))

    def heads(p, x):
        out = recurrent(p, x)
        return out[:, :2], out[:, 2:]

    objective = VAEObjective(heads, lambda p, z: (z @ p["decoder"]).reshape(-1, 4, 4))
    layered = with_layers(objective, params, x, key)
    assert len(layered.places) == 4
    inputs = assert_backward_is_the_gradient(objective, layered, params, x, key)
    assert [rows.shape for rows in inputs[:3]] == [(24, 4), (24, 3), (24, 3)]
    np.testing.assert_array_equal(inputs[0], jnp.moveaxis(x, 2, 0).reshape(24, 4))


@pytest.mark.slow
def test_kfac_trains_convolutional_networks_of_one_s_own(key):
    """Rows of independent pixels: the best bound is their entropy, about 5.5 nats."""
    params, _ = network(key)
    grey = np.linspace(0.05, 0.95, 4)[None, :, None]
    data = jnp.asarray(generator(key).random((300, 4, 4)) < grey, float)
    objective = objective_of()
    result = curvi.minimise(
        objective, params, data=data, batch_size=50, method=curvi.KFAC(), max_steps=600
    )
    start, end = (float(objective(p, data, key)) for p in (params, result.params))
    assert end < start - 1
    mean = np.clip(np.asarray(data).mean(axis=0), 1e-9, 1 - 1e-9)
    assert end < np.sum(special.entr(mean) + special.entr(1 - mean)) + 2
