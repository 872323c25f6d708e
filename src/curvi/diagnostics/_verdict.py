"""The verdict of a result, and the plain-text table that it stands on top of."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from jaxtyping import Array, PyTree

from curvi._core.errors import Outcome
from curvi._core.text import printable
from curvi._core.trees import coordinate_names, flat_numbers
from curvi.diagnostics._evaluation import GRADES
from curvi.families import Diagonal, DiagonalPlusLowRank, LowerTriangular

LARGEST_MC_ERROR = 0.05
_MOST_FULL = 1000  # coordinates, up to which a full covariance is advised
_FIRST_RANK = 10


def cautions(
    *,
    mc_error: float | None,
    mc_tolerance: float,
    unsolved: str,
    alarms: tuple[str, ...],
    starts: np.ndarray | None,
    corrected: bool = False,
) -> tuple[str, ...]:
    """One sentence for everything that a converged result should not be trusted for."""
    found = []
    if mc_error is not None and mc_error > mc_tolerance:
        more = "pass a larger num_draws, or leave it out and let it grow"
        if corrected:  # draws of one's own would leave the ladder
            more = "accept a larger mc_tolerance, or sample with NUTS from result.to_blackjax()"
        found.append(f"The Monte-Carlo error of the mean is {mc_error:.2g} posterior sds; {more}.")
    if unsolved:
        left = "is unknown" if mc_error is None else "is that of the others, and may be larger"
        found.append(f"{unsolved}, so the Monte-Carlo error of the mean {left}.")
    found += alarms
    if starts is not None and not corrected:  # what answers then is no longer one of the starts
        found += _of_starts(starts)
    return tuple(dict.fromkeys(sentence for sentence in found if sentence))


def not_finite_sentence(mean: PyTree, sd: PyTree, *, most_names: int = 4) -> str:
    """Name what has a mean or sd that is not finite in the user's space; empty if nothing has.

    ``most_names``: names that are listed.
    """
    bad = ~(np.isfinite(flat_numbers(mean)) & np.isfinite(flat_numbers(sd)))
    if not bad.any():
        return ""
    names = [name for name, worst in zip(coordinate_names(mean), bad, strict=True) if worst]
    listed = ", ".join(names[:most_names])
    more = "" if len(names) <= most_names else f" and {len(names) - most_names} more"
    return (
        f"The answer is not finite: constrain gives nan or inf for {listed}{more} at draws of q, "
        "where the log density is finite; make constrain finite wherever the log density is, or "
        "narrow the prior if it overflows."
    )


def resolution_sentence(mean: PyTree, sd: PyTree, dtype: Any, *, coarse: float = 0.5) -> str:
    """Name what lies so far from zero that numbers of its precision hardly resolve its sd.

    ``coarse``: sds between two neighbouring numbers: at one a skewed density was 0.3 sds off.
    """
    with np.errstate(all="ignore"):
        step = np.spacing(np.abs(flat_numbers(mean)).astype(dtype)).astype(np.float64)
        share = step / flat_numbers(sd).astype(np.float64)
    share = np.where(np.isfinite(share), share, 0.0)
    if not share.size or share.max() <= coarse:
        return ""
    worst = int(np.argmax(share))
    return (
        f"Numbers of {np.dtype(dtype).name} near {coordinate_names(mean)[worst]} are "
        f"{share[worst]:.2g} of its sds apart: the log density cannot resolve it, and means and "
        "sds may be wrong; subtract its size from the parameter, or use double precision."
    )


def misfit_sentence(result: Any) -> str:
    """What a misfit is and what to do about it, other than what has been done; empty if none."""
    if not result.misfit:
        return ""
    if result.correction is not None:
        return (
            "The answer has not converged: HMC from draws of q still moves its moments, or "
            f"mixes too slowly (worth {result.correction.ess:.0f} draws; against them q has "
            f"{result.correction.worst}). Means and sds may be wrong: give the scale of a group a "
            "prior that keeps it from zero, write group effects as mean + sd * noise, or sample "
            "with NUTS from result.to_blackjax()."
        )
    dimension, scale = result.target.dimension, result.family.scale
    found = (
        f"q does not match the target (Pareto k {result.khat:.2f}, relative ESS "
        f"{result.relative_ess:.2g}; good fits have ESS above {GRADES.enough_ess}, or k below "
        f"{GRADES.worst_k} and ESS above {GRADES.least_ess}): sds and tails may be wrong; "
    )
    if isinstance(scale, Diagonal) and dimension > _MOST_FULL:
        return found + (
            "q has no correlations, and above a thousand coordinates the ladder goes on only where "
            "the Hessian has zeros or is cheap. result.linear_response() has the sds that "
            f"correlations make, curvi.fit(..., family=curvi.LowRank({_FIRST_RANK})) the largest "
            "of them; a model in which fewer coordinates meet (a series by its levels, not by its "
            "innovations) has zeros."
        )
    richer = _richer(dimension, scale)
    return found + f"use linear_response, {richer}or num_starts in case there are several optima."


def _richer(dimension: int, scale: Any) -> str:
    """A family to try, one whose covariance fits into memory and into the time of a fit."""
    if dimension == 1 or isinstance(scale, LowerTriangular):
        return ""
    if dimension <= _MOST_FULL:
        return "a richer family such as FullRank(), "
    rank = 2 * scale.rank if isinstance(scale, DiagonalPlusLowRank) else _FIRST_RANK
    return f"a richer family such as LowRank({rank}), "


def cliff_sentence(
    trace: np.ndarray, elbo: float, log_ratio: np.ndarray | None, noise: Array | None, *,
    fall: float = 5.0, relative_fall: float = 0.1, fall_ses: float = 10.0,
) -> str:  # fmt: skip
    """Say that the bound on fresh draws is far below that on the fixed ones; empty if it is not.

    The spread of log p over draws of q is taken from quartiles: one draw beyond the edge of a
    cliff would explain its own fall.

    ``fall``, ``relative_fall``, ``fall_ses``: nats, a share of the bound, and standard errors, by
    whose sum it must be lower.
    """
    if not len(trace) or log_ratio is None or noise is None:
        return ""
    fitted, (num_draws, dimension) = float(trace[-1]), noise.shape
    low, high = np.quantile(log_ratio, [0.25, 0.75])
    spread = (high - low) / 1.35 + (dimension / 2) ** 0.5  # of the log ratios, and of log q
    error = spread * (1 / num_draws + 1 / len(log_ratio)) ** 0.5
    if not fitted - elbo > fall + relative_fall * abs(fitted) + fall_ses * error:
        return ""
    return (
        f"The bound on fresh draws ({elbo:.4g}) is far below the one that was fitted "
        f"({fitted:.4g}): q reaches where the log density falls off a cliff; transform the bounded "
        "coordinate, for example to its logarithm, or pass a larger num_draws."
    )


def _of_starts(elbos: np.ndarray, *, same_optimum: float = 1.0) -> list[str]:
    """The spread of the bounds that several starts reached; one that failed is NaN.

    ``same_optimum``: nats between starts that ended in the same optimum.
    """
    found, good = [], elbos[np.isfinite(elbos)]
    if len(good) and np.ptp(good) > same_optimum:
        found.append(
            f"The starts ended at bounds from {good.min():.4g} to {good.max():.4g}: there are "
            "several optima, and the best one found is returned; more starts may find a better one."
        )
    if len(good) < len(elbos):
        failed = len(elbos) - len(good)
        found.append(f"{failed} of {len(elbos)} starts failed; the others were kept.")
    return found


def headline(outcome: Outcome, warnings: tuple[str, ...]) -> str:
    """The first line of a summary."""
    if outcome is not Outcome.CONVERGED:
        return "NOT CONVERGED"
    return "converged, with warnings" if warnings else "converged"


class Summary(str):
    """A summary as text, with its table as a DataFrame."""

    names: list[str]
    columns: dict[str, np.ndarray]

    @property
    def frame(self) -> Any:
        """The table: a row for every name, numbers in full precision."""
        import pandas as pd

        return pd.DataFrame(self.columns, index=self.names)


def summary_table(
    *,
    verdict: tuple[str, str | list[str]],
    facts: dict[str, str],
    names: list[str],
    columns: dict[str, np.ndarray],
    most_rows: int = 40,
) -> Summary:
    """Format a verdict, some facts and one row per name."""
    head, text = verdict
    lines = [head]
    for sentence in [text] if isinstance(text, str) else text:
        plain = printable(sentence, keep="\n")  # wrapping turns line ends into spaces
        lines += textwrap.wrap(plain, 96, initial_indent="  ", subsequent_indent="  ")
    width = max(len(name) for name in facts)
    hanging = " " * (width + 2)
    for name, fact in facts.items():
        entry = printable(f"{name:<{width}}  {fact}", keep="\n")
        lines += textwrap.wrap(entry, 110, subsequent_indent=hanging)
    whole = names
    names = [printable(name) for name in names]
    shown = list(range(len(names)))
    if len(names) > most_rows:
        half = most_rows // 2
        shown = [*range(half), *range(len(names) - half, len(names))]
    stub = max([len(names[i]) for i in shown], default=0)
    lines.append("")
    lines.append(" " * stub + "".join(f"{name:>12}" for name in columns))
    for place, i in enumerate(shown):
        if place and i != shown[place - 1] + 1:
            lines.append(f"... {len(names) - len(shown)} more ...")
        cells = "".join(f"{column[i]:>12.4g}" for column in columns.values())
        lines.append(f"{names[i]:<{stub}}{cells}")
    summary = Summary("\n".join(lines))
    summary.names, summary.columns = whole, columns
    return summary
