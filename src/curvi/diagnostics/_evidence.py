r"""The log evidence :math:`\log Z`, Z the integral of the density that a target gives.

Without draws of the target, from importance ratios of q: :math:`Z = E_q[p / q]`. With draws of the
target by HMC, by the bridge of least variance between both (Meng and Wong, 1996),

.. math:: Z = \frac{E_q[p / (s_1 p / Z + s_2 q)]}{E_p[q / (s_1 p / Z + s_2 q)]},

and its relative error as Frühwirth-Schnatter (2004) has it, chains counted by their effective
draws.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import special

from curvi._core.trees import precision_of
from curvi.families import host_map
from curvi.objective import BatchedDensity


class Evidence(NamedTuple):
    """log Z and its standard error."""

    log: float
    se: float


def by_importance(log_ratio: np.ndarray) -> Evidence:
    """From log p - log q at draws of q."""
    logs = np.where(np.isfinite(log_ratio), log_ratio, -np.inf)
    value = float(special.logsumexp(logs)) - np.log(len(logs))
    variance = float(np.exp(special.logsumexp(2 * (logs - value))) / len(logs)) - 1
    return Evidence(value, float(np.sqrt(max(variance, 0.0) / len(logs))))


def by_bridge(
    at_q: np.ndarray, at_p: np.ndarray, effective: float, *, rounds: int = 1000, near: float = 1e-10
) -> Evidence:
    """From log p - log q at draws of q and at draws of p, these worth ``effective`` draws."""
    at_q = np.where(np.isfinite(at_q), at_q, -np.inf)
    total = len(at_q) + effective
    own, other = np.log(len(at_q) / total), np.log(effective / total)
    value, last = by_importance(at_q).log, np.inf
    for _ in range(rounds):
        if abs(value - last) < near:
            break
        last = value
        # Ratios against the mixture of q and p / Z: p to both under q, q to both under p.
        above = at_q - value - np.logaddexp(other + at_q - value, own)
        below = -np.logaddexp(other + at_p - value, own)
        above_mean = special.logsumexp(above) - np.log(len(above))
        value = value + float(above_mean - special.logsumexp(below) + np.log(len(below)))
    variance = sum(
        np.var(np.exp(part - special.logsumexp(part))) * len(part) ** 2 / count
        for part, count in ((above, len(at_q)), (below, effective))
    )
    return Evidence(value, float(np.sqrt(variance)))


def evidence_of(result: Any, log_ratio: np.ndarray) -> Evidence:
    """The evidence from all that a fit knows of its target; NaN where its draws are in doubt."""
    correction = result.correction
    if correction is None or correction.kind == "importance":
        return by_importance(log_ratio)
    if not correction.trusted:
        return Evidence(float("nan"), float("inf"))
    with precision_of(result.target.dtype):
        place = host_map(result.family, result.params)
        noise = place.noise_of(correction.draws.astype(np.float64))
        moved = place.forward(noise)
        values, _ = BatchedDensity.of(result.target)(moved.positions)
    log_q = -0.5 * np.sum(noise**2 + np.log(2 * np.pi), axis=1) - moved.log_det
    return by_bridge(log_ratio, values - log_q, min(correction.ess, len(noise)))
