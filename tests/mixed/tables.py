"""Tables with groups, made from a key."""

from __future__ import annotations

import numpy as np
import pandas as pd

from curvi.objective._draws import host_generator


def generator(key, *stream):
    """NumPy's generator of a key."""
    return host_generator(key, *stream)


def table(rng, *, likelihood="gaussian", groups=20, rows=6, sd=0.8, slope_sd=0.0, noise=0.7):
    """A random intercept (and slope) per group; levels are texts."""
    g = np.repeat(np.arange(groups), rows)
    x = rng.standard_normal(len(g))
    t = 0.4 + 0.5 * x + sd * rng.standard_normal(groups)[g]
    t = t + slope_sd * rng.standard_normal(groups)[g] * x
    y = {
        "gaussian": lambda: t + noise * rng.standard_normal(len(g)),
        "student-t": lambda: t + noise * rng.standard_t(4, len(g)),
        "bernoulli": lambda: rng.random(len(g)) < 1 / (1 + np.exp(-t)),
        "binomial": lambda: rng.binomial(5, 1 / (1 + np.exp(-t))),
        "poisson": lambda: rng.poisson(np.exp(t)),
        "negative-binomial": lambda: rng.poisson(np.exp(t) * rng.gamma(2.0, 0.5, len(g))),
    }[likelihood]()
    frame = pd.DataFrame({"y": np.asarray(y, float), "x": x, "n": 5})
    frame["g"] = [f"level {code:03d}" for code in g]
    return frame
