"""
A Hessian-free step in an optax loop
====================================

``curvi.interop.hessian_free`` is a transformation of optax, for any training loop. Here it trains a
network of equinox. It needs the loss as a function, because it takes products with its Hessian.
"""

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


def train(optimiser, steps, **extra):
    """Losses of every step, and the parameters at the end."""

    @jax.jit
    def step(params, state):
        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimiser.update(gradient, state, params, **extra)
        return optax.apply_updates(params, updates), state, value

    values, current, state = [], params, optimiser.init(params)
    for _ in range(steps):
        current, state, value = step(current, state)
        values.append(float(value))
    return values


# %%
# Sixty steps with curvature against a thousand of Adam:
ours = train(hessian_free(cg_steps=30), 60, value_fn=loss)
adam = {rate: train(optax.adam(rate), 1000) for rate in (0.003, 0.01, 0.03)}
print(f"Hessian-free, 60 steps: mean squared error {ours[-1]:.1e}")
for rate, values in adam.items():
    print(f"Adam({rate}), 1000 steps: {values[-1]:.1e}")

# %%
# Per step, Hessian-free does more work: up to 30 products and a gradient.
from matplotlib import pyplot as plt

figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
axes.loglog(range(1, 61), ours, color="#0072B2", label="Hessian-free")
for (rate, values), style in zip(adam.items(), (":", "--", "-."), strict=True):
    axes.loglog(range(1, 1001), values, style, color="#D55E00", label=f"Adam({rate})")
axes.set(xlabel="step", ylabel="mean squared error")
axes.legend(frameon=False)
