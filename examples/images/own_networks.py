"""
Networks of your own
====================

Two pure functions are an auto-encoder, whatever library built them: here networks of equinox.
Dense and convolutional layers are found in their trace, so that Kronecker curvature applies.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from sklearn.datasets import load_digits

import curvi
from curvi.vae import VAEObjective, fit_networks

LATENT = 4
X = jnp.asarray(load_digits().data / 16, jnp.float32)
train, test = X[:1500], X[1500:]
keys = jax.random.split(jax.random.key(0), 2)
networks = {
    "encoder": eqx.nn.MLP(64, 2 * LATENT, 50, 1, jnp.tanh, key=keys[0]),
    "decoder": eqx.nn.MLP(LATENT, 64, 50, 1, jnp.tanh, key=keys[1]),
}
# Arrays are the parameters; everything else is fixed and put back inside the functions.
params, static = eqx.partition(networks, eqx.is_inexact_array)


def encode(p, x):
    both = jax.vmap(eqx.combine(p, static)["encoder"])(x)
    return both[:, :LATENT], both[:, LATENT:]


def decode(p, z):
    return jax.vmap(eqx.combine(p, static)["decoder"])(z)


# %%
objective = VAEObjective(encode, decode)
model = fit_networks(objective, params, train, max_epochs=8)
print(model.trained.sentence)
print(f"bound on other images: {model.score(test):.2f} nats per image")

# %%
# Any other method trains the same objective, by ``fit_networks(..., method=curvi.LBFGS())``
# or through :func:`curvi.minimise`, which takes any function of parameters, rows and a key.
figure = curvi.plots.plot_images(
    {"images": test[:10], "reconstructed": model.reconstruct(test[:10])}, (8, 8)
)
