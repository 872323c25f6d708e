"""A small fit whose bits are compared, and a callback that cuts it short."""

import jax
import jax.numpy as jnp
import numpy as np

import curvi


def log_density(z, shift=1.0):
    return -jnp.sum(jnp.cosh(0.5 * z - shift)) - 0.05 * jnp.sum(z) ** 2


def fit(checkpoint=None, **options):
    given = {"family": curvi.FullRank(), "execution": "eager", "num_starts": 2, **options}
    return curvi.fit(log_density, jnp.zeros(3), progress=False, checkpoint=checkpoint, **given)


def bits(result):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result.params)] + [
        result.trace[name].tobytes() for name in sorted(result.trace) if name != "seconds"
    ]


class CutError(Exception):
    """Ends a run like a crash."""


def cut_after(count):
    """A callback that fails at a step."""
    seen = []

    def on_step(info):
        seen.append(info)
        if len(seen) == count:
            raise CutError

    return on_step
