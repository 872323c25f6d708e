"""What a fitted model says of itself: tables of effects, the verdict, the text of a summary."""

from __future__ import annotations

from typing import Any

import numpy as np

from curvi._core.text import printable
from curvi.diagnostics import smoothed_weights
from curvi.latent import smooth_quantiles
from curvi.likelihoods import Likelihood
from curvi.mixed._hyper import INTERCEPT
from curvi.mixed._inference import SAMPLING
from curvi.mixed._origins import Entries
from curvi.mixed._posterior import MixedPosterior, weighted_moments, weighted_quantile

_INTERVAL = 0.9
_WORST_K = 0.7
_EVEN = 0.5  # share of effective points from which the shape of the tail is no alarm
_MOST_PRIOR = 0.95  # of the prior's sd: above it the data say next to nothing


def rows_of_summary(posterior: MixedPosterior) -> list[tuple[str, str, np.ndarray]]:
    """Every quantity of a summary: its kind, its name, its value in all components."""
    out: list[tuple[str, str, np.ndarray]] = [
        ("fixed effect", name, values)
        for name, values in zip(posterior.names, posterior.fixed().T, strict=True)
    ]
    blocks = [
        (grouping.name, block) for grouping in posterior.groupings for block in grouping.blocks
    ]
    natural = posterior.layout.natural(posterior.theta)
    for (factor, block), (sds, matrix) in zip(blocks, natural, strict=True):
        for column, name in enumerate(block.columns):
            out.append(("group sd", f"{name}|{factor}", sds[:, column]))
        if block.correlations:
            for i in range(block.size):
                for j in range(i):
                    name = f"{block.columns[j]},{block.columns[i]}|{factor}"
                    out.append(("correlation", name, matrix[:, i, j]))
    extras = posterior.layout.extra_values(posterior.theta)
    for index, extra in enumerate(posterior.layout.extras):
        out.append((extra.name, "", extras[:, index]))
    return out


def table_of(posterior: MixedPosterior) -> list[dict[str, Any]]:
    """Mean, sd and the central 90 % interval of every quantity of a summary."""
    out = []
    for kind, name, values in rows_of_summary(posterior):
        mean, sd = weighted_moments(values, posterior.weights)
        low, high = central_interval(kind, values, posterior.weights, _INTERVAL)
        entry = {"kind": kind, "name": name, "mean": float(mean), "sd": float(sd)}
        out.append({**entry, "lower": low, "upper": high})
    return out


def central_interval(
    kind: str, values: np.ndarray, weights: np.ndarray, level: float, *,
    many: int = 300, few: int = 16,
) -> tuple[float, float]:  # fmt: skip
    """Ends of the central interval of a quantity, from its values at weighted points.

    Up to ``many`` values are points of a lattice or a star (`smooth_quantiles`), and of fewer than
    ``few`` one normal density is left. Sds are taken by their logarithms, correlations by their
    inverse hyperbolic tangents.
    """
    tails = 0.5 * (1 - level), 0.5 * (1 + level)
    found = len(np.unique(values))
    if found > many or found == 1:
        low, high = (float(weighted_quantile(values, weights, p)) for p in tails)
        return low, high
    back: Any = np.asarray
    x = values
    if kind == "correlation":
        x, back = np.arctanh(np.clip(values, -1 + 1e-12, 1 - 1e-12)), np.tanh
    elif kind != "fixed effect":
        x, back = np.log(np.maximum(values, 1e-300)), np.exp
    one = {"width": 1.0} if found < few else {}
    low, high = (float(back(end[0])) for end in smooth_quantiles(x[:, None], weights, tails, **one))
    return low, high


def khat_of(log_ratios: np.ndarray) -> float | None:
    """Pareto k of importance weights; None where there are none."""
    return float(smoothed_weights(log_ratios).khat) if len(log_ratios) else None


def cautions(
    posterior: MixedPosterior, fixed: np.ndarray, scales: np.ndarray, log_ratios: np.ndarray,
    relative_ess: float,
) -> tuple[str, ...]:  # fmt: skip
    """Sentences about what should not be trusted, or is known from the prior alone.

    ``fixed`` are the effects of which the priors are stated.
    """
    found = []
    if relative_ess < SAMPLING.least_ess:
        found.append(
            f"The importance weights keep {relative_ess:.1%} of the points: the posterior is not "
            "what the approximation takes it for, and means and sds may be wrong. Raise "
            "num_points, simplify the group terms, or use a sampler."
        )
    elif relative_ess < _EVEN and (khat := khat_of(log_ratios) or 0.0) > _WORST_K:
        found.append(
            f"The importance weights have heavy tails (Pareto k = {khat:.2f}, {relative_ess:.0%} "
            "of the points are effective); raise num_points."
        )
    _, sds = weighted_moments(fixed, posterior.weights)
    decided = [
        name
        for name, sd, scale in zip(posterior.names, sds, scales, strict=True)
        if sd > _MOST_PRIOR * scale
    ]
    if decided:
        listed = ", ".join(decided[:4])
        found.append(
            f"The data say next to nothing about {listed}: the posterior sd is that of the prior."
        )
    return tuple(found)


def verdict(converged: bool, relative_ess: float, method: str) -> str:
    """One sentence on how far the answer can be trusted."""
    if not converged:
        return (
            "The mode of the hyperparameters was not reached; rescale columns of very different "
            "sizes, or simplify the group terms."
        )
    return (
        f"Converged: {method}; {relative_ess:.0%} of the points of importance sampling are "
        "effective."
    )


def description(
    formula: str, likelihood: Likelihood, priors: list[tuple[str, str]], head: str = "MixedModel"
) -> str:
    """Formula, likelihood, link and priors, one per line."""
    lines = [head, f"  formula     {printable(formula)}"]
    lines.append(f"  likelihood  {likelihood.title}")
    priors = [(printable(name), printable(text)) for name, text in priors]
    width = max((len(name) for name, _ in priors), default=0)
    lines += [f"  {'priors' if not i else '':<10}  {name:<{width}}  ~ {text}"
              for i, (name, text) in enumerate(priors)]  # fmt: skip
    return "\n".join(lines)


def text_table(rows: list[dict[str, Any]]) -> str:
    """The table of a summary as text."""
    names = [f"{row['kind']} {row['name']}".strip() for row in rows]
    width = max(len(printable(name)) for name in names)
    lines = [f"{'':<{width}}  {'mean':>10}  {'sd':>9}  {'5 %':>10}  {'95 %':>10}"]
    for name, row in zip(names, rows, strict=True):
        numbers = f"{row['mean']:>10.4g}  {row['sd']:>9.3g}  {row['lower']:>10.4g}"
        lines.append(f"{printable(name):<{width}}  {numbers}  {row['upper']:>10.4g}")
    return "\n".join(lines)


def _where(names: tuple[str, ...], place: int, origin: Any, within: Entries) -> str:
    """Where the prior of an effect is stated, if not at zero."""
    moves = any(entry[0] == place for entry in within)
    moves |= names[place] == INTERCEPT and bool(np.any(origin))
    return " at the means of the columns" if moves else ""


def priors_of(model: Any) -> list[tuple[str, str]]:
    """Names of parameters and their priors: numbers where the data are known, rules before."""
    if not hasattr(model, "posterior_"):
        unit = "2.5 sd(y)" if model._likelihood().location_scale else "2.5"
        centre = "(from the means of the data)"
        given = [
            ("fixed effects", "N(0, {}^2)", model.prior_scale, f"({unit} / sd(x))"),
            ("intercept", "N(0, {}^2)", model.intercept_prior_scale, centre),
            ("group sds", "half-normal({})", model.group_sd_scale, f"{unit} / sd(x)"),
        ]
        if "residual sd" in [extra.name for extra in model._likelihood().extras]:
            given.append(("residual sd", "half-normal({})", model.noise_scale, "sd(y)"))
        out = [
            (name, text.format(rule if v is None else f"{v:g}")) for name, text, v, rule in given
        ]
        return [*out, ("correlations", "LKJ(2)")]
    posterior, within = model.posterior_, model._memory.common.within
    out = [
        (n, f"N(0, {s:.3g}^2){_where(posterior.names, k, model._origin, within)}")
        for k, (n, s) in enumerate(zip(posterior.names, model._scales, strict=True))
    ]
    for grouping in posterior.groupings:
        for block in grouping.blocks:
            for k, (column, scale) in enumerate(zip(block.columns, block.scales, strict=True)):
                where = _where(block.columns, k, block.origin, block.within)
                prior = f"half-normal({scale:.3g}){where}"
                out.append((f"sd {column}|{grouping.name}", prior))
            if block.correlations:
                moves = any(block.origin) or block.within
                where = " at the means of the columns" if moves else ""
                out.append((f"correlations |{grouping.name}", f"LKJ(2){where}"))
    for extra in posterior.layout.extras:
        rule = "gamma(2, {:.3g})" if extra.prior == "gamma" else "half-normal({:.3g})"
        value = 1 / extra.scale if extra.prior == "gamma" else extra.scale
        out.append((extra.name, rule.format(value)))
    return out
