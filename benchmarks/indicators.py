"""A table of indicators, 50,000 x 300 with 4 % non-zeros, against SciPy's L-BFGS.

The rival maximises the same bound in (mu, log sigma): with twenty Gauss-Hermite nodes as one writes
it in a few lines, on an array or on a sparse matrix, and on the products and the quadrature that
curvi itself uses, which no user of SciPy has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize, sparse, special

import curvi
from benchmarks.common import with_intercept
from curvi._core.quadrature import gauss_hermite
from curvi.glm._dense import DenseBound
from curvi.glm._sparse_rows import SparseTable
from curvi.likelihoods import Bernoulli

ROWS, FACTORS, LEVELS = 50_000, 12, 25
NATS = 0.1  # from the optimum, where the clock of a rival stops
NODES = 20
PATIENCE = 120.0  # processor seconds of a rival
Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]


def table(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Indicators of twelve factors with 25 levels each: 4 % of the entries are ones."""
    rng = np.random.default_rng(0)
    width = FACTORS * LEVELS
    filled = rng.integers(LEVELS, size=(rows, FACTORS))
    filled += LEVELS * np.arange(FACTORS)
    X = np.zeros((rows, width))
    X[np.arange(rows)[:, None], filled] = 1.0
    return X, rng.logistic(size=rows) < X @ (0.5 * rng.normal(size=width))


def by_quadrature(X: Any, sign: np.ndarray) -> Objective:
    """The negative bound and its gradient, in NumPy and with every row at all nodes."""
    squares = X.multiply(X).tocsr() if sparse.issparse(X) else X**2
    nodes, weights = gauss_hermite(NODES)

    def objective(params: np.ndarray) -> tuple[float, np.ndarray]:
        mean, log_sd = np.split(params, 2)
        variance = np.exp(2 * log_sd)
        centre, spread = sign * (X @ mean), np.sqrt(squares @ variance)
        t = centre[:, None] + spread[:, None] * nodes
        miss = special.expit(-t)
        energy = float((np.logaddexp(0, -t) @ weights).sum())
        slope, bend = miss @ weights, (miss * (1 - miss)) @ weights
        divergence = 0.5 * float(np.sum(variance + mean**2 - 1)) - float(log_sd.sum())
        by_mean = mean - X.T @ (sign * slope)
        by_log_sd = variance * (squares.T @ bend + 1) - 1
        return energy + divergence, np.concatenate([by_mean, by_log_sd])

    return objective


def by_our_products(X: sparse.csr_array, sign: np.ndarray) -> Objective:
    """The same from products over non-zeros and as many nodes as the variance of a row needs."""
    size = X.shape[1]
    rows = SparseTable(X, np.ones(size), np.zeros(size), sign, np.ones(len(sign)))
    return DenseBound(False, np.ones(size), Bernoulli(), rows).first_order


def lbfgs(objective: Objective, size: int, goal: float, budget: float) -> dict[str, float | None]:
    """Processor seconds of SciPy's L-BFGS until the bound is above a goal, and until it stops."""
    start = np.concatenate([np.zeros(size), np.full(size, -0.5 * np.log(size))])
    began, reached, best = time.process_time(), None, -np.inf

    def watched(params: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal reached, best
        value, gradient = objective(params)
        spent, best = time.process_time() - began, max(best, -value)
        if reached is None and -value > goal:
            reached = spent
        if spent > budget:
            raise TimeoutError
        return value, gradient

    try:
        options = {"maxiter": 10_000, "maxfun": 20_000}
        optimize.minimize(watched, start, jac=True, method="L-BFGS-B", options=options)
    except TimeoutError:
        pass
    return {"seconds": reached, "until_it_stops": time.process_time() - began, "best": best}


def measured(quick: bool, budget: float | None = None) -> dict[str, Any]:
    """Our fits of the array and of the sparse matrix, and the rivals on each."""
    X, y = table(3000 if quick else ROWS)
    ours: dict[str, float] = {}
    for kind, given in (("array", X), ("sparse", sparse.csr_array(X))):
        seconds = []
        for _ in range(4):
            began = time.process_time()
            model = curvi.BayesianLogisticRegression(covariance="diagonal", standardize=False).fit(
                given, y
            )
            seconds.append(time.process_time() - began)
        ours[kind] = float(np.median(seconds[1:]))
    design, sign = with_intercept(X), np.where(y, 1.0, -1.0)
    compressed = sparse.csr_array(design)
    rivals = {
        "array": by_quadrature(design, sign),
        "sparse": by_quadrature(compressed, sign),
        "our products": by_our_products(compressed, sign),
    }
    goal, limit = model.elbo_ - NATS, budget or PATIENCE
    scipy = {name: lbfgs(rival, design.shape[1], goal, limit) for name, rival in rivals.items()}
    return {
        "elbo": model.elbo_,
        "converged": bool(model.converged_),
        "cpu_seconds": ours,
        "scipy": scipy,
        "speedup": {
            name: (row["seconds"] or row["until_it_stops"]) / ours.get(name, max(ours.values()))
            for name, row in scipy.items()
        },
        "at_least": any(row["seconds"] is None for row in scipy.values()),
    }
