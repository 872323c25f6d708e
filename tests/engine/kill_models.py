"""A process to be killed: ``python -m tests.engine.kill_models MODEL FILE OUT`` fits a model.

It resumes from FILE if it is there, and writes the bytes of what was fitted to OUT when it ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np

import curvi


def images():
    """Two directions and noise, in (0, 1)."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(120, 2)) @ generator.normal(size=(2, 6))
    return 1 / (1 + np.exp(-logits - generator.normal(size=logits.shape)))


def state_space(checkpoint):
    generator = np.random.default_rng(3)
    y = generator.poisson(np.exp(np.cumsum(0.2 * generator.normal(size=40)))).astype(float)
    model = curvi.StateSpace(likelihood="poisson").fit(y, checkpoint=checkpoint)
    return [model.smooth().mean, np.asarray(model.log_evidence_)]


def deep_markov(checkpoint):
    sequences = list((images().reshape(12, 10, 6) > 0.5).astype(float))
    model = curvi.DeepMarkovModel(2, 4, max_epochs=40, batch_size=4, patience=100)
    model.fit(sequences[:9], validation_sequences=sequences[9:], checkpoint=checkpoint)
    return [*jax.tree.leaves(model.params_), model.history_["validation_elbo"]]


def vae(checkpoint):
    model = curvi.VAE(2, (4,), max_epochs=40, batch_size=10, patience=100, random_state=0)
    model.fit(images(), checkpoint=checkpoint)
    return [*jax.tree.leaves(model.params_), model.history_["validation_elbo"]]


def semi_supervised(checkpoint):
    model = curvi.SemiSupervisedVAE(2, (4,), max_epochs=40, batch_size=10, random_state=0)
    labels = np.resize([0, 1, -1, -1], 120)
    model.fit(images(), labels, checkpoint=checkpoint)
    return [*jax.tree.leaves(model.params_), model.history_["elbo"]]


MODELS = {fn.__name__: fn for fn in (state_space, deep_markov, vae, semi_supervised)}

if __name__ == "__main__":
    name, file, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    found = MODELS[name](curvi.Checkpoint(file, every_seconds=0))
    out.write_bytes(b"".join(np.asarray(part).tobytes() for part in found))
