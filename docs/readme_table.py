"""The table of README: curvi beside the best other library that was measured, from result files."""

from __future__ import annotations

from typing import Any

from markdown import as_table
from posterior_tables import readme_rows

Row = dict[str, Any]


def measured_table(posteriors: Row | None, regression: Row | None, vae: Row | None) -> str:
    """One row for every kind of task; where curvi is slower, the numbers say so."""
    rows: list[tuple[str, str, str]] = []
    if posteriors:
        rows += readme_rows(posteriors)
    if regression:
        rows += _regression_rows(regression)
    if vae and "mnist" in vae:
        rows.append(_vae_row(vae["mnist"]))
    names = ("task", "curvi, nothing tuned", "best other that was measured")
    return as_table([dict(zip(names, row, strict=True)) for row in rows])


def _regression_rows(regression: Row) -> list[tuple[str, str, str]]:
    normal, ard = regression["a9a_normal"], regression["a9a"]
    ends = max(run["best_bound"] for run in ard["dsvi"])
    return [
        (
            "Bayesian logistic regression, a9a (32,561 rows)",
            f"the exact optimum after {normal['seconds_warm']:.2f} s",
            "within 15 nats of it after "
            f"{_at_least(normal['numpyro_seconds'], normal)} s (NumPyro AutoNormal, best Adam)",
        ),
        (
            "the same with a relevance prior",
            f"{max(ard['elbo']):.0f} nats after {ard['seconds']:.1f} s",
            f"within 30 nats of its end, {ends:.0f} nats, after "
            f"{_at_least(ard['dsvi_seconds'], ard)} s (DSVI)",
        ),
    ]


def _vae_row(mnist: Row) -> tuple[str, str, str]:
    parts = []
    for target in mnist["rivals"]["adam"]:
        found = mnist["ratios"][f"adam {target}"]
        more = "at least " if found["at_least"] else ""
        parts.append(f"{more}{found['ratio']:.1f} to {float(target):.0f} nats")
    return (
        "auto-encoder of MNIST: time to a held-out bound, in units of curvi's",
        "1",
        f"{', '.join(parts)} (Adam, tuned for each)",
    )


def _at_least(seconds: float | None, part: Row) -> str:
    """Seconds of a rival, or those that were not enough for it."""
    if seconds is not None:
        return f"{seconds:.1f}"
    budget = part.get("dsvi_budget") or part.get("numpyro_budget")
    return f"at least {budget:.1f}"
