"""What the table of posteriors amounts to: verdicts by model, and the headline figures."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from benchmarks import posteriors
from benchmarks.common import verdict
from curvi._core.files import write_atomically

PARTIAL = Path(__file__).parent / "results" / "posteriors_partial.json"
ACCURATE_MEAN, ACCURATE_SD = 0.25, (0.7, 1.4)
LINEAR_MEAN, LINEAR_SD = 0.05, (0.88, 1.05)
GOALS = {"mean_error": 0.046, "sd_error": 0.031, "converged": 0.98}
RESPONSE, FULL, DADVI = "curvi MeanField, linear response", "curvi FullRank", "DADVI pymc-extras"


def accurate(row) -> bool:
    if row["mean_error"] is None:
        return False
    return (
        row["mean_error"] <= ACCURATE_MEAN
        and row["sd_low"] >= ACCURATE_SD[0]
        and row["sd_high"] <= ACCURATE_SD[1]
    )


def show(name, who, row) -> None:
    if row.get("skipped"):
        print(f"  {name:40s} {who:32s} {row['skipped'][:80]}", flush=True)
        return
    if row["mean_error"] is None:
        numbers = "no finite result"
    else:
        numbers = (
            f"mean {row['mean_error']:8.3g} sd (average {row['mean_error_average']:.3g}), sds "
            f"{row['sd_low']:.3f} to {row['sd_high']:.3f}"
        )
    warm = f" then {row['seconds_warm']:.2f} s" if "seconds_warm" in row else ""
    fits = f" k {row['khat']:.2f} ess {row['relative_ess']:.2f}" if row.get("khat") else ""
    flag = " flagged" if row.get("flagged") else ""
    silent = "  SILENT" if row.get("flagged") is False and not accurate(row) else ""
    print(
        f"  {name:40s} {who:32s} {numbers}  {row['seconds']:6.2f} s{warm} "
        f"{row.get('outcome', '')}{fits}{flag}{silent}",
        flush=True,
    )


def keep_partial(table) -> None:
    """What there is so far: a run that is cut short leaves its rows."""
    write_atomically(PARTIAL, json.dumps({"rows": table}, indent=2, allow_nan=False) + "\n")


def headline(table, who) -> dict | None:
    """Medians over the models that are not listed as hard; averages over parameters within one."""
    rows = [
        row[who]
        for name, row in table.items()
        if name not in posteriors.HARD and who in row and not row[who].get("skipped")
    ]
    finite = [row for row in rows if row["mean_error"] is not None]
    if not finite:
        return None
    return {
        "models": len(rows),
        "mean_error": statistics.median(row["mean_error_average"] for row in finite),
        "worst_mean_error": statistics.median(row["mean_error"] for row in finite),
        "sd_error": statistics.median(row["sd_error_average"] for row in finite),
        "converged": sum(bool(row.get("converged")) for row in rows) / len(rows),
        "median_seconds": statistics.median(row["seconds"] for row in rows),
        "total_seconds": sum(row["seconds"] for row in rows),
    }


def against_dadvi(table, who) -> dict | None:
    """Seconds on the models that both ran: first calls, and a second call of DADVI.

    Its second call builds its graph anew but finds compiled modules on the disk, as the first one
    does where a similar model has run on the machine before.
    """
    both = [
        (row[who]["seconds"], row[DADVI]["seconds"], row[DADVI]["seconds_warm"])
        for row in table.values()
        if who in row and "seconds" in row.get(DADVI, {})
    ]
    if not both:
        return None
    ours, theirs, again = zip(*both, strict=True)
    return {
        "models": len(both),
        "total": sum(ours),
        "total_dadvi": sum(theirs),
        "total_dadvi_again": sum(again),
        "median": statistics.median(ours),
        "median_dadvi": statistics.median(theirs),
        "median_dadvi_again": statistics.median(again),
    }


def summary(table) -> dict:
    linear = [row[FULL] for name, row in table.items() if name in posteriors.LINEAR]
    silent = [
        f"{name}: {who}"
        for name, rows in table.items()
        for who, row in rows.items()
        if who.startswith("curvi") and not row["flagged"] and not accurate(row)
    ]
    known = [row for row in linear if row["mean_error"] is not None]
    whole = len(known) == len(linear)
    met = {
        "linear_mean": whole and all(row["mean_error"] <= LINEAR_MEAN for row in known),
        "linear_sd": whole
        and all(row["sd_low"] >= LINEAR_SD[0] and row["sd_high"] <= LINEAR_SD[1] for row in known),
        "none_silently_wrong": not silent,
    }
    callers = {who for rows in table.values() for who in rows}
    heads = {who: found for who in sorted(callers) if (found := headline(table, who))}
    races = {who: found for who in (RESPONSE, FULL) if (found := against_dadvi(table, who))}
    ours = heads.get(RESPONSE)
    if ours is not None:
        met["median_mean_error"] = ours["mean_error"] <= GOALS["mean_error"]
        met["median_sd_error"] = ours["sd_error"] <= GOALS["sd_error"]
        met["share_converged"] = ours["converged"] >= GOALS["converged"]
    if RESPONSE in races:
        race = races[RESPONSE]
        met["faster_than_dadvi"] = (
            race["total"] < race["total_dadvi"] and race["median"] < race["median_dadvi"]
        )
        met["faster_than_a_second_dadvi"] = race["total"] < race["total_dadvi_again"]
    for who, head in heads.items():
        numbers = ", ".join(f"{name} {value:.3g}" for name, value in head.items())
        print(f"  {who}: {numbers}")
    for who, race in races.items():
        numbers = ", ".join(f"{name} {value:.3g}" for name, value in race.items())
        print(f"  {who} against DADVI [s]: {numbers}")
    for name, ok in met.items():
        print(f"  {name}: {verdict(ok)}")
    for name in silent:
        print(f"  silently wrong: {name}")
    PARTIAL.unlink(missing_ok=True)
    return {
        "rows": table, "silent": silent, "met": met, "headlines": heads, "against_dadvi": races,
        "targets": {"linear_mean": LINEAR_MEAN, "linear_sd": LINEAR_SD, **GOALS},
        "accurate": {"mean": ACCURATE_MEAN, "sd": ACCURATE_SD},
    }  # fmt: skip
