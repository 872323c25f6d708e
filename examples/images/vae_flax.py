"""A flax network with convolutions, trained by the Hessian-free method through curvi.minimise."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from sklearn.datasets import load_digits

import curvi
from curvi.vae import VAEObjective

LATENT = 4


class Encoder(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = x.reshape(-1, 8, 8, 1)
        x = nn.tanh(nn.Conv(8, (3, 3), strides=2)(x)).reshape(x.shape[0], -1)
        return nn.Dense(LATENT)(x), nn.Dense(LATENT)(x)


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, z):
        z = nn.tanh(nn.Dense(4 * 4 * 8)(z)).reshape(-1, 4, 4, 8)
        return nn.ConvTranspose(1, (3, 3), strides=(2, 2))(z).reshape(-1, 64)


X = jnp.asarray(load_digits().data[:1000] / 16, jnp.float32)
encoder, decoder = Encoder(), Decoder()
params = {
    "encoder": encoder.init(jax.random.key(0), X[:1]),
    "decoder": decoder.init(jax.random.key(1), jnp.zeros((1, LATENT))),
}
objective = VAEObjective(
    encode=lambda p, x: encoder.apply(p["encoder"], x),
    decode=lambda p, z: decoder.apply(p["decoder"], z),
    decoder_l2=1e-4,
    penalised=lambda p: p["decoder"],
)
result = curvi.minimise(
    objective,
    params,
    data=X,
    batch_size=200,
    method=curvi.HessianFree(cg_steps=15),
    max_steps=40,
    progress=False,
)
before, after = (float(objective(p, X, jax.random.key(2))) for p in (params, result.params))
print(f"negative bound per image: {before:.1f} before training, {after:.1f} after")
