"""The engine's Hessian-free step as an optax transformation, training an equinox network."""

import equinox
import jax
import jax.numpy as jnp
import optax

from curvi.interop import hessian_free

x = jnp.linspace(-1, 1, 64)[:, None]
y = jnp.sin(3 * x)
network = equinox.nn.MLP(1, 1, width_size=8, depth=1, activation=jnp.tanh, key=jax.random.key(0))
params, static = equinox.partition(network, equinox.is_inexact_array)


def loss(params):
    return jnp.mean((jax.vmap(equinox.combine(params, static))(x) - y) ** 2)


optimiser = hessian_free(cg_steps=30)


@jax.jit
def step(params, state):
    value, gradient = jax.value_and_grad(loss)(params)
    updates, state = optimiser.update(gradient, state, params, value_fn=loss)
    return optax.apply_updates(params, updates), state, value


state = optimiser.init(params)
for _ in range(60):
    params, state, value = step(params, state)
print("mean squared error:", f"{loss(params):.0e}")
