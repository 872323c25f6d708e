"""The verdict of a result: what to read before the numbers."""

from __future__ import annotations

from curvi._core.errors import Outcome
from curvi.diagnostics._importance import ENOUGH_ESS, LEAST_ESS, WORST_K, ImportanceWeights

LARGEST_MC_ERROR = 0.05


def cautions(
    *,
    mc_error: float | None,
    unsolved: str,
    weights: ImportanceWeights | None,
    starts: tuple[float, float, int, int] | None,
) -> tuple[str, ...]:
    """One sentence for everything that a converged result should not be trusted for."""
    found = []
    if mc_error is not None and mc_error > LARGEST_MC_ERROR:
        found.append(
            f"The Monte-Carlo error of the mean is {mc_error:.2g} posterior sds; pass a larger "
            "num_draws, or leave it out and let it grow."
        )
    if unsolved:
        left = "is unknown" if mc_error is None else "is that of the others, and may be larger"
        found.append(f"{unsolved}, so the Monte-Carlo error of the mean {left}.")
    if weights is not None and weights.misfit:
        found.append(misfit_sentence(weights.khat, weights.relative_ess))
    if starts is not None:
        found += _of_starts(*starts)
    return tuple(found)


def misfit_sentence(khat: float, relative_ess: float) -> str:
    """What a misfit is and what to do about it."""
    return (
        f"q does not match the target (Pareto k {khat:.2f}, relative ESS {relative_ess:.2g}; good "
        f"fits have ESS above {ENOUGH_ESS}, or k below {WORST_K} and ESS above {LEAST_ESS}): sds "
        "and tails may be wrong; use linear_response, a richer family such as FullRank(), or "
        "num_starts in case there are several optima."
    )


def _of_starts(best: float, worst: float, failed: int, count: int) -> list[str]:
    found = []
    if best - worst > 1.0:
        found.append(
            f"The starts ended at bounds from {worst:.4g} to {best:.4g}: there are several optima, "
            "and the best one found is returned; more starts may find a better one."
        )
    if failed:
        found.append(f"{failed} of {count} starts failed; the others were kept.")
    return found


def headline(outcome: Outcome, warnings: tuple[str, ...]) -> str:
    """The first line of a summary."""
    if outcome is not Outcome.CONVERGED:
        return "NOT CONVERGED"
    return "converged, with warnings" if warnings else "converged"
