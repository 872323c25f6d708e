r"""Integration over a few hyperparameters: a lattice around the mode of their log density.

In coordinates in which the curvature at the mode is the identity, the trapezoidal rule with a
spacing of one standard deviation integrates a Gaussian to
:math:`2 e^{-2\pi^2} = 5 \cdot 10^{-9}`, and the tails of a skewed density are followed as far as
they matter. Points are evaluated in batches, and what an evaluation leaves behind is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from curvi._core.errors import InputError
from curvi.io import require_claims
from curvi.linalg import find_mode

# Points (count, dimension) to log densities (count,) and a pytree of arrays with the same axis.
Evaluation = Callable[[np.ndarray], tuple[np.ndarray, Any]]

_STEP = 0.1  # of differences, in logarithms: far above rounding, far below a posterior sd
_NEGLIGIBLE = 4.0  # nats below the top at which points may be left out
_FLATTEST = 0.05  # curvature below which a direction counts as flat


class Lattice(NamedTuple):
    """Points with the weights of an integral, and what was computed at each.

    Attributes
    ----------
    points : array, shape (count, dimension)
        Where the density was evaluated and is not negligible.
    weights : array, shape (count,)
        They sum to one.
    log_integral : float
        Logarithm of the integral of the density.
    kept : pytree of arrays
        What the evaluation left behind, point by point.
    mode : array, shape (dimension,)
        Of the density.
    complete : bool
        Whether the answer stands: the tails were followed to the cutoff, before the number of
        points ran out; importance weights are of use; the best effects were found.
    khat : float or None
        Pareto k of importance weights, where there are too many hyperparameters for a lattice.
    not_converged : float
        Weight of the points at which the best effects were not found.
    """

    points: np.ndarray
    weights: np.ndarray
    log_integral: float
    kept: Any
    mode: np.ndarray
    complete: bool
    khat: float | None = None
    not_converged: float = 0.0

    @property
    def shortcoming(self) -> str:
        """Why the answer does not stand; nothing where it does."""
        if self.complete:
            return ""
        if len(self.points) == 1:
            return (
                "time was up before the hyperparameters were integrated: they are the best ones "
                "until then, and their sds are zero"
            )
        if self.not_converged:
            return (
                f"the iteration for the effects did not converge at {self.not_converged:.1%} of "
                "the hyperparameters by weight: means and sds may be off"
            )
        if self.khat is not None:
            return (
                "the importance weights of the hyperparameters are of little use (Pareto k "
                f"{self.khat:.2f}): their sds may be far off"
            )
        return "the hyperparameters have tails longer than the lattice: their sds are too small"

    def fitting(self, names: tuple[str, ...], steps: int) -> Lattice:
        """Itself; refuses one of a file that is no lattice of these hyperparameters and steps."""
        order = ("bound", "precision", "linear", "mean", "variance")
        if getattr(self.kept, "_fields", None) != order:
            raise InputError(f"its lattice_.kept does not hold {', '.join(order)} in this order")
        kept = dict.fromkeys(("kept.precision", "kept.linear", "kept.mean"), "real points steps")
        claims = {"points": "real points names", "weights": "weights points", "mode": "real names"}
        claims |= {"kept.bound": "number points", "kept.variance": "spread points steps", **kept}
        around = {"names": list(names), "lattice_": self, "steps": steps}
        own = {f"lattice_.{name}": claim for name, claim in claims.items()}
        require_claims(around, {"names": "texts names", "steps": "whole steps", **own})
        return self


def integrate(
    evaluate: Evaluation, start: np.ndarray, *,
    spacing: float = 1.0, cutoff: float = 7.0, most: int = 400,
) -> Lattice:  # fmt: skip
    """Integrate a density over all of its support that matters.

    Parameters
    ----------
    evaluate : callable
        The log density of many points at once, and what to keep of each.
    start : array, shape (dimension,)
        Where the search for the mode begins.
    spacing : float
        Between points, in standard deviations at the mode.
    cutoff : float
        A point this far below the highest log density has no further neighbours.
    most : int
        Points at most.

    Returns
    -------
    Lattice
        Points, weights, and what was kept.
    """
    mode, hessian, _ = find_mode(lambda points: evaluate(points)[0], start, difference=_STEP)
    values, vectors = np.linalg.eigh(-hessian)
    root = spacing * vectors / np.sqrt(np.maximum(values, _FLATTEST))
    size = len(mode)
    places, seen = np.zeros((1, size), int), {(0,) * size}
    log_density, kept = evaluate(mode + places @ root.T)
    fresh, lost = np.asarray([0]), -np.inf
    while True:
        alive = fresh[log_density[fresh] > log_density.max() - cutoff]
        around = _neighbours(places[alive], log_density[alive], seen)
        room = max(most - len(places), 0)
        lost = max([lost, *around[room:, -1]])
        new = around[:room, :-1].astype(int)
        if not len(new):
            break
        more, also = evaluate(mode + new @ root.T)
        fresh = len(places) + np.arange(len(new))
        places = np.concatenate([places, new])
        seen |= {tuple(place) for place in new.tolist()}
        log_density = np.concatenate([log_density, more])
        kept = jax.tree.map(lambda a, b: np.concatenate([a, b]), kept, also)
    log_density = np.where(np.isfinite(log_density), log_density, -np.inf)
    top = log_density.max()
    weights = np.exp(log_density - top)
    cell = float(np.linalg.slogdet(root)[1])
    log_integral = float(top + np.log(weights.sum()) + cell)
    use = weights > weights.max() * np.exp(-cutoff - 3)
    weights = weights[use] / weights[use].sum()
    points = mode + places[use] @ root.T
    complete = bool(lost < top - _NEGLIGIBLE)
    kept = jax.tree.map(lambda a: a[use], kept)
    return Lattice(points, weights, log_integral, kept, mode, complete)


def _neighbours(places: np.ndarray, values: np.ndarray, seen: set[tuple[int, ...]]) -> np.ndarray:
    """New places beside given ones, with the highest log density beside each, highest first."""
    size = places.shape[1]
    steps = np.concatenate([np.eye(size, dtype=int), -np.eye(size, dtype=int)])
    best: dict[tuple[int, ...], float] = {}
    for place, value in zip(places, values, strict=True):
        for step in steps:
            beside = tuple(int(x) for x in place + step)
            if beside not in seen:
                best[beside] = max(best.get(beside, -np.inf), float(value))
    table = np.asarray([(*place, value) for place, value in best.items()]).reshape(-1, size + 1)
    return table[np.argsort(-table[:, -1], kind="stable")]
