"""The table of README: curvi beside every other that was measured, from result files."""

from __future__ import annotations

from typing import Any

from markdown import as_table
from posterior_tables import readme_table

Row = dict[str, Any]
NORMAL_NATS, LARGE_NATS = 15, 30  # goals of the rivals, as in benchmarks/bench_regression.py
EQUAL = "adam on the same coordinates and gradients"


def measured_table(posteriors: Row | None, regression: Row | None, vae: Row | None) -> str:
    """Posteriors by contender, then one row for every other task."""
    tables = [readme_table(posteriors)] if posteriors else []
    rows: list[tuple[str, str, str]] = []
    if regression:
        rows += _regression_rows(regression)
    if vae and "mnist" in vae:
        rows.append(_vae_row(vae["mnist"]))
    names = ("task", "curvi, nothing tuned", "others that were measured")
    if rows:
        tables.append(as_table([dict(zip(names, row, strict=True)) for row in rows]))
    return "\n\n".join(tables)


def _regression_rows(regression: Row) -> list[tuple[str, str, str]]:
    normal, ard = regression["a9a_normal"], regression["a9a"]
    ends = max(run["best_bound"] for run in ard["dsvi"])
    return [
        (
            "Bayesian logistic regression, a9a (32,561 rows)",
            f"the exact optimum after {normal['seconds_warm']:.2f} s",
            f"within {NORMAL_NATS} nats of it after "
            f"{_at_least(normal['numpyro_seconds'], normal)} s (NumPyro AutoNormal by Adam, the "
            f"soonest of its schedules, median of {len(normal['numpyro']['cosine']['runs'])} keys)",
        ),
        (
            "the same with a relevance prior",
            f"{max(ard['elbo']):.0f} nats after {ard['seconds']:.1f} s",
            f"within {LARGE_NATS} nats of curvi's bound after "
            f"{_at_least(ard['dsvi_seconds'], ard)} s; best bound of its runs {ends:.0f} nats "
            "(DSVI, the soonest of several rates)",
        ),
    ]


def _vae_row(mnist: Row) -> tuple[str, str, str]:
    names = {EQUAL: "Adam with curvi's inputs and gradients", "adam": "Adam tuned for each bound"}
    parts = [f"{name}: {_ratios(mnist, rival)}" for rival, name in names.items()]
    return (
        "auto-encoder of MNIST: time to a held-out bound, in units of curvi's",
        "1",
        "; ".join(parts),
    )


def _ratios(mnist: Row, rival: str) -> str:
    """How much longer a rival takes, bound by bound."""
    parts = []
    for target in mnist["rivals"][rival]:
        found = mnist["ratios"][f"{rival} {target}"]
        more = "at least " if found["at_least"] else ""
        parts.append(f"{more}{found['ratio']:.1f} to {float(target):.0f} nats")
    return ", ".join(parts)


def _at_least(seconds: float | None, part: Row) -> str:
    """Seconds of a rival, or those that were not enough for it."""
    if seconds is not None:
        return f"{seconds:.1f}"
    budget = part.get("dsvi_budget") or part.get("numpyro_budget")
    return f"at least {budget:.1f}"
