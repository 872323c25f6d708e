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
from curvi._core.meshes import each_on_one, place_rows
from curvi._core.run import within
from curvi.engine._identity import array_digest
from curvi.objective import neg_elbo
from curvi.solvers._kfac import _inverse_root


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

    found = both(shared.rows, z, v)
    with within(mesh=mesh):
        own = roots(dtype)
    parts = (*found, own_draws(shared, dtype), own)
    return [np.asarray(part, np.float64).tolist() for part in parts]


def roots(dtype):
    """Inverse roots of matrices of several sizes, which devices deal out."""
    generator = np.random.default_rng(2)
    tables = [generator.normal(size=(50, size)).astype(dtype) for size in (3, 7, 1, 5)]
    found = jax.jit(lambda given: each_on_one(lambda a: _inverse_root(a, 0.01), given))(
        [jnp.asarray(table.T @ table) for table in tables]
    )
    return np.concatenate([np.ravel(part) for part in found])


def own_draws(shared, dtype):
    """Gradient of the bound where every row has draws of its own."""
    count = jax.tree.leaves(shared.rows)[0].shape[0]  # filled up on a mesh
    noise = np.random.default_rng(1).normal(size=(2, 301, 4)).astype(dtype)
    noise = np.concatenate([noise, np.ones((2, count - 301, 4), dtype)], axis=1)
    family = curvi.MeanField()
    params = family.init(jnp.zeros(4, dtype), jnp.full(4, 0.1, dtype))
    value = jax.jit(jax.grad(lambda p, n, data: neg_elbo(shared.density, family, p, n, data)))
    return np.concatenate(
        [np.ravel(leaf) for leaf in jax.tree.leaves(value(params, noise, shared.rows))]
    )


def digests(mesh):
    """Of tables of which the last two differ in one number, which one process has."""
    table = np.arange(301.0)
    tables = (table, table, table + (table == 299))
    return [array_digest(place_rows(given, mesh)) for given in tables]


def optima(mesh, checkpoint):
    """A fit, a regression, an auto-encoder, a mixed model and sequences."""
    X, y = rows(np.float64)
    options = {"mesh": mesh, "execution": "compiled", "progress": False, "checkpoint": checkpoint}
    fitted = curvi.fit(target(np.float64), **options)
    again = curvi.fit(target(np.float64), **options)  # from what has been found
    assert np.array_equal(again.mean, fitted.mean)
    model = curvi.BayesianLogisticRegression(random_state=0).fit(X, y, mesh=mesh)
    images = 1 / (1 + np.exp(-X))
    vae = curvi.VAE(2, (8,), max_epochs=3, batch_size=32, random_state=0).fit(images, mesh=mesh)
    table = {"y": X[:, 0] + X[:, 1], "x": X[:, 1], "g": np.arange(301) % 20}
    mixed = curvi.MixedModel("y ~ x + (1 | g)", num_points=64).fit(table, mesh=mesh)
    sequences = list((X[:300].reshape(30, 10, 4) > 0).astype(float))
    markov = curvi.DeepMarkovModel(2, 4, max_epochs=3, batch_size=8).fit(sequences, mesh=mesh)
    return {
        "mixed": [*mixed.coef_.tolist(), mixed.log_evidence_],
        "markov": markov.elbo_,
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
        | {"digests": digests(shared)}
        if what == "derivatives"
        else optima(shared, out.with_suffix(".checkpoint"))
    )
    if jax.process_index() == 0:
        out.write_text(json.dumps(found), encoding="utf-8")
