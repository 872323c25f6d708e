"""The same numbers on any layout: ``python -m tests.engine.mesh_worker OUT WHAT [DEVICES]``.

Run alone it makes a mesh of so many devices (which XLA_FLAGS must provide), under ``curvi launch``
one over all processes. The first process writes what it found as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import curvi


def rows(dtype):
    """A logistic regression whose rows do not divide evenly."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(301, 4))
    y = np.where(X[:, 0] + generator.normal(size=301) > 0, 1.0, -1.0)
    return X.astype(dtype), y.astype(dtype)


def target(dtype):
    """Its posterior."""
    X, y = rows(dtype)
    return curvi.DataTarget(
        lambda b, r: jax.nn.log_sigmoid(r["y"] * (r["x"] @ b)),
        {"x": X, "y": y},
        lambda b: -0.5 * jnp.sum(b**2),
        jnp.zeros(4, dtype),
    )


def derivatives(mesh, dtype):
    """Gradient and Hessian-vector product of the log density on the mesh."""
    density = target(dtype)
    shared = density if mesh is None else density.on_mesh(mesh)
    z, v = jnp.linspace(-0.5, 0.7, 4, dtype=dtype), jnp.ones(4, dtype)

    @jax.jit
    def both(data, z, v):
        return jax.jvp(jax.grad(lambda x: shared.density.log_prob(x, data)), (z,), (v,))

    return [np.asarray(part, np.float64).tolist() for part in both(shared.rows, z, v)]


def optima(mesh):
    """A fit, a regression, and an auto-encoder."""
    X, y = rows(np.float64)
    fitted = curvi.fit(target(np.float64), mesh=mesh, execution="compiled", progress=False)
    model = curvi.BayesianLogisticRegression(random_state=0).fit(X, y, mesh=mesh)
    images = 1 / (1 + np.exp(-X))
    vae = curvi.VAE(2, (8,), max_epochs=3, batch_size=32, random_state=0).fit(images, mesh=mesh)
    return {
        "fit": np.asarray(fitted.mean).tolist(),
        "coef": model.coef_.tolist(),
        "vae": vae.elbo_,
    }


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    out, what = Path(sys.argv[1]), sys.argv[2]
    shared = curvi.data_mesh(int(sys.argv[3]) if len(sys.argv) > 3 else None)
    found = (
        {str(np.dtype(d)): derivatives(shared, d) for d in (np.float32, np.float64)}
        if what == "derivatives"
        else optima(shared)
    )
    if jax.process_index() == 0:
        out.write_text(json.dumps(found), encoding="utf-8")
