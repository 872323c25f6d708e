"""Sentences of the paper that hold under a condition: K = 10, three iterations, more draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from curvi.paper.experiments._figures import QUICK, Row, as_markdown, median_and_range, write_files
from curvi.paper.experiments._methods import (
    LARGE,
    SMALL,
    Options,
    best_of,
    load_rows,
    pilots,
    tried,
)
from curvi.paper.experiments._regression import DATA, NEAR
from curvi.paper.experiments._runs import MethodRun, Setting, errors, run_setting

Rows = tuple[np.ndarray, np.ndarray]
COUNTS = (3, 10, 30, 50)
_EARLY = 30  # steps, after half of which it is seen where a run stands
# Rows of a9a, draws of L-BFGS-SGVI, and processor seconds.
_TABLES = {"a9a, first 3,000 rows": (3000, (10, 100, 300), 20.0),
           "a9a, all rows": (None, (10, 100), 100.0)}  # fmt: skip


def cg_steps(
    out: Path, *, seeds: Sequence[int], quick: bool, report: Callable[[str], None],
    seconds: float | None = None, steps: int | None = None, num_steps: int = 100,
) -> list[Path]:  # fmt: skip
    """Write cg_steps.csv (one line per run) and cg_steps.md (medians for every K).

    Every K takes the same number of steps, and the variant of HFSGVI is the one that the pilot
    runs with K = 10 choose.

    ``num_steps``: steps of a run.
    """
    usual = num_steps // 5 if quick else num_steps
    options = Options(tuple(seeds), quick, seconds, usual if steps is None else steps)
    rows: list[Row] = []
    lines: list[Row] = []
    said = []
    for name in DATA:
        train, test = load_rows(name)
        setting = best_of(pilots(name, "HFSGVI", options, report))
        said.append(f"{name}: {setting}")
        ends = {}
        for count in COUNTS:
            report(f"{name}: K = {count}")
            runs = _runs(setting, count, train, options, options.seconds_for(name))
            ends[count] = float(np.median([run.last for run in runs]))
            lines.append(_line(name, count, runs, train, test))
            rows += [
                {"data": name, "K": count, "seed": seed, "bound": f"{run.last:.4f}",
                 "steps": int(run.step[-1]), "seconds": f"{run.seconds[-1]:.3f}"}
                for seed, run in zip(seeds, runs, strict=True)
            ]  # fmt: skip
        said[-1] += "" if quick else f". {_verdict(ends)}"
    parts = [as_markdown(lines), *(f"- {line}" for line in said), *([QUICK] if quick else [])]
    return write_files(out, {"cg_steps.csv": rows, "cg_steps.md": _joined(parts)})


def _runs(
    setting: Setting, count: int, train: Rows, options: Options, limit: float
) -> list[MethodRun]:
    method: Any = setting.method
    changed = replace(setting, method=replace(method, cg_steps=count))
    return [run_setting(changed, *train, seed=seed, seconds=limit) for seed in options.seeds]


def _line(name: str, count: int, runs: list[MethodRun], train: Rows, test: Rows) -> Row:
    return {
        "data": name,
        "K": count,
        "bound [nats]": median_and_range([run.last for run in runs], 2),
        "training errors": median_and_range([errors(run.mean, *train) for run in runs]),
        "test errors": median_and_range([errors(run.mean, *test) for run in runs]),
        "steps": median_and_range([int(run.step[-1]) for run in runs]),
        "seconds": median_and_range([float(run.seconds[-1]) for run in runs], 1),
        "diverged seeds": sum(run.diverged for run in runs),
    }


def _verdict(ends: dict[int, float], *, usual: int = 10) -> str:
    """The paper's sentence about K = 10, in nats.

    ``usual``: the paper's number of steps.
    """
    most = max(COUNTS)
    gap = ends[usual] - ends[most]
    side = "above" if gap > 0 else "below"
    held = "does not deteriorate" if gap > -NEAR else "deteriorates"
    return (
        f"K = {usual} ends {abs(gap):.2f} nats {side} K = {most} in these runs: the bound {held} "
        f"by more than {NEAR:g} nats"
    )


def _joined(parts: list[str]) -> str:
    table, *rest = parts
    return table + "\n\n" + "\n".join(rest) + "\n"


def plateau(
    out: Path,
    *,
    seeds: Sequence[int],
    quick: bool,
    report: Callable[[str], None],
    seconds: float | None = None,
    steps: int | None = None,
) -> list[Path]:
    """Write plateau.csv (one line per run) and plateau.md: where HFSGVI settles, and how soon."""
    limit = float("inf") if seconds is None else seconds
    usual = _EARLY + 10 if quick else SMALL["HFSGVI"][0].max_steps
    drawn = [replace(s, max_steps=steps or usual) for s in SMALL["HFSGVI"][: 1 if quick else None]]
    exact = [replace(s, num_draws=0) for s in drawn if not s.per_row]
    rows: list[Row] = []
    lines: list[Row] = []
    for name in ("duke", "leukemia"):
        train, _ = load_rows(name)
        for setting in (*exact, *drawn):
            report(f"{name}: {setting}")
            # Without draws every seed gives the same run.
            readings = [
                {"data": name, "reading": str(setting), "draws": setting.num_draws, "seed": seed}
                | _settled(setting, *train, seed, limit)
                for seed in (seeds if setting.num_draws else seeds[:1])
            ]
            rows += readings
            lines.append(_plateau_line(readings))
    text = as_markdown(lines) + "\n" + f"\n{QUICK}\n" * quick
    return write_files(out, {"plateau.csv": rows, "plateau.md": text})


def _settled(setting: Setting, X: np.ndarray, y: np.ndarray, seed: int, limit: float) -> Row:
    """Where a run stands after a few steps, since when, and when it leaves."""
    early = min(_EARLY, setting.max_steps)
    short = run_setting(replace(setting, max_steps=early), X, y, seed=seed, seconds=limit)
    whole = run_setting(setting, X, y, seed=seed, seconds=limit)
    stands = float(np.median(short.bound[short.step > early / 2]))
    away = ~(np.abs(short.bound - stands) <= NEAR)  # a bound that is not finite is away
    last = np.flatnonzero(away)[-1] if away.any() else -1
    since = int(short.step[last + 1]) if last + 1 < len(away) else ""
    above = np.flatnonzero((whole.step > early) & (whole.bound > stands + NEAR))
    return {
        "start": f"{short.bound[0]:.4f}",
        "stands": f"{stands:.4f}",
        "since_step": since,
        "train_errors": errors(short.mean, X, y),
        "largest_ratio": f"{np.max(np.abs(short.mean) / short.sd):.4f}",
        "leaves_at_step": int(whole.step[above[0]]) if above.size else "",
        "end": f"{whole.last:.6g}",
    }


def _plateau_line(rows: list[Row]) -> Row:
    leaves = [row["leaves_at_step"] or "never" for row in rows]
    return {
        "data": rows[0]["data"],
        "reading": rows[0]["reading"],
        f"bound of steps {_EARLY // 2} to {_EARLY} [nats]": _range(rows, "stands", 2),
        f"within {NEAR:g} nats of it since step": _range(rows, "since_step"),
        f"training errors after {_EARLY}": _range(rows, "train_errors"),
        "largest mean / sd": _range(rows, "largest_ratio", 2),
        f"{NEAR:g} nats above it at step": ", ".join(map(str, dict.fromkeys(leaves))),
        "bound at the end [nats]": _range(rows, "end", 2),
    }


def _range(rows: list[Row], key: str, digits: int = 0) -> str:
    """The median and range of what is known; a run that does not settle is after all others."""
    values = [float("inf") if row[key] == "" else float(row[key]) for row in rows]
    return median_and_range(values, digits).replace("inf", "never")


def lbfgs_draws(
    out: Path,
    *,
    seeds: Sequence[int],
    quick: bool,
    report: Callable[[str], None],
    seconds: float | None = None,
) -> list[Path]:
    """Write lbfgs_draws.csv (one line per run) and lbfgs_draws.md: L-BFGS-SGVI beside DSVI.

    All runs of a table may use the same seconds of the processor; the rate of DSVI is chosen by a
    pilot run. The whole of a9a is run with the first seed alone.
    """
    rows: list[Row] = []
    lines: list[Row] = []
    (X, y), _ = load_rows("a9a")
    for name, (count, counts, usual) in _TABLES.items():
        train = X[:count], y[:count]
        used = seeds[:1] if count is None else seeds
        limit = seconds or (1.0 if quick else usual)
        report(f"{name}: choosing the rate of DSVI")
        candidates = (*(() if count is None else SMALL["DSVI"]), *LARGE["DSVI"])
        chosen = best_of(tried(candidates[: 1 if quick else None], *train, limit / 4))
        settings = {"DSVI": chosen}
        for k in counts:
            settings[f"L-BFGS-SGVI, {k} draws"] = replace(LARGE["L-BFGS-SGVI"][0], num_draws=k)
        for method, setting in settings.items():
            report(f"{name}: {method}")
            measured = []
            for seed in used:
                run = run_setting(setting, *train, seed=seed, seconds=limit)
                measured.append(
                    {"data": name, "method": method, "setting": str(setting), "seed": seed,
                     "draws": setting.num_draws, "bound": f"{run.last:.4f}",
                     "steps": int(run.step[-1]), "seconds": f"{run.seconds[-1]:.2f}"}
                )  # fmt: skip
            rows += measured
            lines.append(
                {"data": name, "method": method, "seeds": len(measured),
                 "bound at the end [nats]": _range(measured, "bound", 2),
                 "steps": _range(measured, "steps"),
                 "processor time [s]": _range(measured, "seconds", 1)}
            )  # fmt: skip
    text = as_markdown(lines) + "\n" + f"\n{QUICK}\n" * quick
    return write_files(out, {"lbfgs_draws.csv": rows, "lbfgs_draws.md": text})
