"""Section 2.3: whether few conjugate-gradient iterations, K = 10, deteriorate HFSGVI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from curvi.reproduction._methods import Options, best_of, load_rows, pilots
from curvi.reproduction._regression import DATA, NEAR
from curvi.reproduction._runs import Run, Setting, errors, run_setting
from curvi.reproduction._tables import QUICK, Row, as_markdown, median_and_range, write_files

Rows = tuple[np.ndarray, np.ndarray]
COUNTS = (3, 10, 30, 50)
_USUAL = 10  # the paper's
_STEPS, _QUICK_STEPS = 100, 20


def cg_steps(
    out: Path,
    *,
    seeds: Sequence[int],
    quick: bool,
    report: Callable[[str], None],
    seconds: float | None = None,
    steps: int | None = None,
) -> list[Path]:
    """Write cg_steps.csv (one line per run) and cg_steps.md (medians for every K).

    Every K takes the same number of steps, and the variant of HFSGVI is the one that the pilot
    runs with K = 10 choose.
    """
    usual = _QUICK_STEPS if quick else _STEPS
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
    setting: Setting,
    count: int,
    train: tuple[np.ndarray, np.ndarray],
    options: Options,
    limit: float,
) -> list[Run]:
    method: Any = setting.method
    changed = replace(setting, method=replace(method, cg_steps=count))
    return [run_setting(changed, *train, seed=seed, seconds=limit) for seed in options.seeds]


def _line(
    name: str,
    count: int,
    runs: list[Run],
    train: Rows,
    test: Rows,
) -> Row:
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


def _verdict(ends: dict[int, float]) -> str:
    """The paper's sentence about K = 10, in nats."""
    most = max(COUNTS)
    gap = ends[_USUAL] - ends[most]
    side = "above" if gap > 0 else "below"
    held = "does not deteriorate" if gap > -NEAR else "deteriorates"
    return (
        f"K = {_USUAL} ends {abs(gap):.2f} nats {side} K = {most} in these runs: the bound {held} "
        f"by more than {NEAR:g} nats"
    )


def _joined(parts: list[str]) -> str:
    table, *rest = parts
    return table + "\n\n" + "\n".join(rest) + "\n"
