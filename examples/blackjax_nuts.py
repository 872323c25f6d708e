"""NUTS of BlackJAX, started from a fit and with its mass matrix: no warm-up."""

import blackjax
import jax
import jax.numpy as jnp

import curvi


def log_density(z):  # a banana, in the far corner of badly scaled coordinates
    a, b = z["a"], z["b"]
    return -0.5 * ((a - 300) / 20) ** 2 - 0.5 * ((b - 0.001 * (a - 300) ** 2) / 0.3) ** 2


result = curvi.fit(log_density, {"a": jnp.zeros(()), "b": jnp.zeros(())}, progress=False)
start = result.to_blackjax(num_chains=4)
nuts = blackjax.nuts(
    start.logdensity_fn, step_size=0.5, inverse_mass_matrix=start.inverse_mass_matrix
)


def chain(position, key):
    def step(state, key):
        state, _ = nuts.step(key, state)
        return state, state.position

    return jax.lax.scan(step, nuts.init(position), jax.random.split(key, 1000))[1]


draws = jax.jit(jax.vmap(chain))(start.positions, jax.random.split(jax.random.key(0), 4))
print("a:", draws["a"].shape, "within 5 of 300:", bool(abs(draws["a"].mean() - 300) < 5))
