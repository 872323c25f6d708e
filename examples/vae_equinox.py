"""An equinox network, trained by L-BFGS through curvi.minimise."""

import equinox as eqx
import jax
import jax.numpy as jnp
from sklearn.datasets import load_digits

import curvi
from curvi.vae import VAEObjective

LATENT = 4
X = jnp.asarray(load_digits().data[:1000] / 16, jnp.float32)
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


objective = VAEObjective(encode, decode)
result = curvi.minimise(
    objective, params, data=X, batch_size=100, method=curvi.LBFGS(history=10),
    max_steps=100, progress=False,
)  # fmt: skip
before, after = (float(objective(p, X, jax.random.key(2))) for p in (params, result.params))
print(f"negative bound per image: {before:.1f} before training, {after:.1f} after")
