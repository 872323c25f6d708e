"""The posteriors as recorded before the benchmark had processor seconds: for that record alone.

``python -m benchmarks posteriors`` writes a record that ``posterior_tables`` shows; this file can
go when no older one is left.
"""

from __future__ import annotations

from typing import Any

from markdown import as_table

Row = dict[str, Any]


def earlier_table(result: Row) -> str:
    """A record of the benchmark as it was: wall-clock seconds, no hierarchical models."""
    rows = [
        {
            "posterior": name.split("-", maxsplit=1)[1],
            "method": method,
            "worst mean error [sd]": _number(row.get("mean_error")),
            "sd ratios": "none"
            if row.get("mean_error") is None
            else f"{row['sd_low']:.2f} to {row['sd_high']:.2f}",
            "seconds": _number(row.get("seconds")),
            "ended": row.get("outcome", "did not run").lower().replace("_", " "),
            "k, relative ESS": f"{row['khat']:.2f}, {row['relative_ess']:.2f}"
            if row.get("khat") is not None
            else "",
        }
        for name, methods in result["rows"].items()
        for method, row in methods.items()
    ]
    silent = ", ".join(result["silent"]) or "none"
    mean, (low, high) = result["accurate"]["mean"], result["accurate"]["sd"]
    return (
        "This record is older than the hierarchical models, the processor seconds and the rule "
        "above; its seconds are those of the clock, and some peers stopped after 100 s in all.\n\n"
        f"{_earlier_headlines(result)}\n\n{as_table(rows)}\n\n"
        f"Inaccurate (a mean off by more than {mean} sd, or an sd ratio outside {low} to {high}) "
        f"without a warning by that rule: {silent}."
    )


def _earlier_headlines(result: Row) -> str:
    """Medians over the models that are not hard, and seconds beside DADVI's."""
    rows = [
        {
            "method": method,
            "models": head["models"],
            "median mean error [sd]": head["mean_error"],
            "of the worst parameter": head["worst_mean_error"],
            "median sd error": f"{100 * head['sd_error']:.1f} %",
            "converged": "no verdict"
            if method.startswith(("NumPyro", "BlackJAX", "PyMC"))
            else f"{100 * head['converged']:.0f} %",
            "median seconds": head["median_seconds"],
        }
        for method, head in result["headlines"].items()
    ]
    races = [
        f"{method}: {race['total']:.0f} s over {race['models']} models (median "
        f"{race['median']:.2f} s), {_second_calls(result, method):.0f} s when called again; DADVI "
        f"{race['total_dadvi']:.0f} s (median {race['median_dadvi']:.2f} s), when called again "
        f"{race['total_dadvi_again']:.0f} s (median {race['median_dadvi_again']:.2f} s)."
        for method, race in result["against_dadvi"].items()
    ]
    return "\n\n".join([as_table(rows), "On the models that both ran:", *races])


def _second_calls(result: Row, method: str) -> float:
    """Seconds of the second calls of one of curvi's methods, on the models that DADVI ran too."""
    dadvi = "DADVI pymc-extras"
    rows = [row for row in result["rows"].values() if "seconds" in row.get(dadvi, {})]
    return float(sum(row[method]["seconds_warm"] for row in rows))


def earlier_row(result: Row) -> tuple[str, str, str]:
    """What README's table says about posteriors, from the earlier record."""
    ours = result["headlines"]["curvi MeanField, linear response"]
    theirs = result["headlines"]["DADVI pymc-extras"]
    race = result["against_dadvi"]["curvi MeanField, linear response"]
    return (
        "posteriors with reference draws: median error of means / of sds, converged",
        f"{ours['mean_error']:.3f} sd / {100 * ours['sd_error']:.1f} %, "
        f"{100 * ours['converged']:.0f} % of {ours['models']}; {race['total']:.0f} s together",
        f"{theirs['mean_error']:.2f} sd / {100 * theirs['sd_error']:.0f} %, "
        f"{100 * theirs['converged']:.0f} % of {theirs['models']}; {race['total_dadvi']:.0f} s for "
        "the same models (DADVI, pymc-extras)",
    )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"
