"""What the rows of the posteriors amount to: the best rate of each contender, and the figures."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks import own_models, posteriors
from benchmarks.common import verdict
from benchmarks.hierarchical import MODELS, SMALL
from benchmarks.posterior_scores import RIGHT_MEAN, RIGHT_SD, is_silent

Row = dict[str, Any]
Table = dict[str, dict[str, Row]]
GOALS = {"right": 0.9, "median_of_nuts": 0.2, "most_of_nuts": 1.0}
GROUPS = ("regressions and small models", "hierarchical and latent Gaussian", "hard")
# Posteriors that no Gaussian on the unconstrained scale fits: a funnel, two modes, boundaries.
HARD = posteriors.HARD


def group_of(model: str) -> str:
    """The part of the table that a posterior belongs to."""
    if model in HARD:
        return GROUPS[2]
    return GROUPS[1] if model in MODELS and model not in SMALL else GROUPS[0]


def table_of(rows: dict[tuple[str, str], Row]) -> Table:
    """Rows by model and contender; of several learning rates the one with the best bound.

    Without any finite bound the fastest failure stands for all. Seconds are those of the shown
    rate alone; the number of rates is kept, because its user pays for all of them.
    """
    order = [*posteriors.MODELS, *own_models.OWN, *MODELS]
    table: Table = {model: {} for model in order}
    for (model, name), row in rows.items():
        who, _, rate = name.partition("@")
        shown = {k: v for k, v in row.items() if k not in ("model", "who")}
        if rate:
            shown["rate"] = float(rate)
            known = table[model].get(who)
            tried = row.get("rates_tried", 1)
            shown["rates_tried"] = tried + (known["rates_tried"] if known else 0)
            if known and _loss(known) <= _loss(shown):
                known["rates_tried"] = shown["rates_tried"]
                continue
        table[model][who] = shown
    for found in table.values():
        _beside_nuts(found)
    return {model: found for model, found in table.items() if found}


def _beside_nuts(found: dict[str, Row]) -> None:
    """Processor time as a share of that of NUTS, of rows of one commit and so of one run.

    Cold: first calls, each with its compilation. Warm: second calls, without that of NUTS, which
    compiles its loop at every run; a rival whose loop stays compiled would be as fast.
    """
    nuts = found.get("NumPyro NUTS", {})
    for row in found.values():
        row.pop("of_nuts", None)
        if "compiling" not in nuts or row.get("commit") != nuts.get("commit"):
            continue
        if row.get("seconds") is not None:
            row["of_nuts"] = row["seconds"] / nuts["seconds"]
        if row.get("seconds_warm") is not None and nuts.get("seconds_warm") is not None:
            bare = nuts["seconds_warm"] - nuts["compiling_warm"]
            row["of_nuts_warm"] = row["seconds_warm"] / bare


def _loss(row: Row) -> float:
    return float("inf") if row.get("loss") is None else float(row["loss"])


def headline(rows: list[Row]) -> Row:
    """Counts, and medians over the posteriors with an answer."""
    finite = [row for row in rows if row.get("mean_error") is not None]
    shares = [row["of_nuts"] for row in finite if row.get("of_nuts") is not None]
    seconds = [row["seconds"] for row in rows if row.get("seconds") is not None]
    again = [row["seconds_warm"] for row in rows if row.get("seconds_warm") is not None]
    warm = [row["of_nuts_warm"] for row in finite if row.get("of_nuts_warm") is not None]
    return {
        "models": len(rows),
        "answers": len(finite),
        "right": sum(bool(row.get("right")) for row in rows),
        "silent": sum(is_silent(row) for row in rows),
        "flagged": sum(bool(row.get("flagged")) for row in rows),
        "mean_error": _median([row["mean_error_average"] for row in finite]),
        "worst_mean_error": _median([row["mean_error"] for row in finite]),
        "sd_error": _median([row["sd_error_average"] for row in finite]),
        "seconds": _median(seconds),
        "seconds_warm": _median(again),
        "median_of_nuts": _median(shares),
        "most_of_nuts": max(shares) if shares else None,
        "median_of_nuts_warm": _median(warm),
        "most_of_nuts_warm": max(warm) if warm else None,
        "compiling": _median([r["compiling"] for r in rows if r.get("compiling") is not None]),
        "compiling_warm": _median(
            [r["compiling_warm"] for r in rows if r.get("compiling_warm") is not None]
        ),
    }


def _median(values: list[float]) -> float | None:
    return float(statistics.median(values)) if values else None


def summary(rows: dict[tuple[str, str], Row]) -> dict[str, Any]:
    """Everything that the manual shows, and whether the goals are met."""
    table = table_of(rows)
    callers = list(dict.fromkeys(who for found in table.values() for who in found))
    heads = {
        group: {
            who: headline(mine)
            for who in callers
            if (mine := [f[who] for m, f in table.items() if group_of(m) == group and who in f])
        }
        for group in GROUPS
    }
    silent = [
        f"{model}: {who}" for model, found in table.items() for who, row in found.items()
        if who.startswith("curvi") and is_silent(row)
    ]  # fmt: skip
    met = goals(heads[GROUPS[1]].get("curvi"))
    for group, found in heads.items():
        for who, head in found.items():
            numbers = ", ".join(f"{k} {v:.3g}" for k, v in head.items() if v is not None)
            print(f"  {group}; {who}: {numbers}")
    for name, ok in met.items():
        print(f"  {name}: {verdict(ok)}")
    return {
        "rows": table, "headlines": heads, "silent": silent, "met": met, "goals": GOALS,
        "right": {"mean": RIGHT_MEAN, "sd": RIGHT_SD}, "hard": sorted(HARD),
    }  # fmt: skip


def goals(head: Row | None) -> dict[str, bool]:
    """The goals of the default on hierarchical models."""
    if head is None:
        return {}
    met = {
        "right_on_nine_of_ten": head["right"] >= GOALS["right"] * head["models"],
        "none_silent": head["silent"] == 0,
    }
    if head["median_of_nuts"] is not None:
        met["a_fifth_of_nuts"] = head["median_of_nuts"] <= GOALS["median_of_nuts"]
        met["never_more_than_nuts"] = head["most_of_nuts"] <= GOALS["most_of_nuts"]
    return met
