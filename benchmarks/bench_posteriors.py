"""Posteriors with references: errors, processor time and verdict of curvi and its peers.

``python -m benchmarks posteriors [--models A,B] [--contenders A,B] [--limit SECONDS] [--fresh]
[--once]`` (parts of names will do). Every pair of contender and posterior runs in a process of its
own with the same limit of processor time; rows are appended to ``results/posteriors.jsonl``, and a
run that was cut short goes on where it stopped, as does one beside a record made elsewhere.
Peers need the environment of ``peers.txt``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import posterior_contenders as contenders
from benchmarks import posterior_problems as problems
from benchmarks import posterior_summary as summaries
from benchmarks.common import RESULTS
from benchmarks.posterior_scores import line
from curvi.paper.experiments._provenance import provenance

ROWS = RESULTS / "posteriors.jsonl"
RECORD = RESULTS / "posteriors.json"
LIMIT = 100.0  # processor seconds of one call
PATIENCE = 20  # wall clock seconds for each of them: other work may share the machine
THREADS = 1  # each process has one core
MARK = "ROW "
Row = dict[str, Any]


def options(arguments: list[str]) -> argparse.Namespace:
    """What to run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks posteriors")
    parser.add_argument("--models", default="", help="parts of names, separated by commas")
    parser.add_argument("--contenders", default="", help="parts of names, separated by ;")
    parser.add_argument("--limit", type=float, default=LIMIT, help="processor seconds of a call")
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time")
    parser.add_argument("--once", action="store_true", help="no second call")
    parser.add_argument("--fresh", action="store_true", help="measure again what is known")
    return parser.parse_args(arguments)


def chosen(known: list[str], wanted: str, separator: str = ",") -> list[str]:
    """Names that are wanted: equal to a part, or else containing one."""
    parts = [part.strip() for part in wanted.split(separator) if part.strip()]
    if not parts:
        return known
    return [n for n in known if n in parts or any(p in n and p not in known for p in parts)]


def run_one(who: str, model: str, limit: float, *, once: bool = False) -> Row:
    """The row of one contender on one posterior."""
    command = [sys.executable, "-m", "benchmarks.posterior_worker", who, model, str(limit)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS)}
    process = subprocess.Popen(
        command + ["--once"] * once, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).parent.parent, env=environment,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=PATIENCE * limit)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    row: Row = {}
    for text in output.splitlines():
        if text.startswith(MARK):
            row |= json.loads(text.removeprefix(MARK))
    if not row:
        late = process.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
        last = (errors.strip().splitlines() or ["no output"])[-1]
        failed = f"more than {limit:.0f} processor seconds" if late else last[:300]
        row = {
            "failed": failed,
            "flagged": True,
            "right": False,
            "seconds": limit if late else None,
        }
    return row | {"model": model, "who": who, "limit": limit}


def recorded() -> dict[tuple[str, str], Row]:
    """The rows of the record: of a contender with learning rates, that of the best rate."""
    if not RECORD.exists():
        return {}
    return {
        (model, f"{who}@{row['rate']:g}" if "rate" in row else who): row
        for model, found in json.loads(RECORD.read_text())["rows"].items()
        for who, row in found.items()
    }


def read_rows() -> dict[tuple[str, str], Row]:
    """The last row of every pair, whether it was measured here or stands in the record."""
    lines = ROWS.read_text().splitlines() if ROWS.exists() else []
    rows = [json.loads(text) for text in lines if text.strip()]
    here = {(row["model"], row["who"]): row for row in rows}
    tuned = {(model, name.partition("@")[0]) for model, name in here if "@" in name}
    elsewhere = {
        (model, name): row
        for (model, name), row in recorded().items()
        if (model, name.partition("@")[0]) not in tuned
    }
    return elsewhere | here


def append(row: Row) -> None:
    """One more row; a run that is cut short keeps all whole ones."""
    with ROWS.open("a") as file:
        file.write(json.dumps(row, allow_nan=False, sort_keys=True) + "\n")


def variants(who: str, measure: Callable[[str], Row]) -> Iterator[Row]:
    """The rows of a contender: one, or one for each learning rate.

    Where the best bound belongs to a rate at the edge of the grid, one rate beyond it is tried.
    """
    if not contenders.has_rate(who):
        yield measure(who)
        return
    rows = {rate: measure(f"{who}@{rate:g}") for rate in contenders.RATES}
    yield from rows.values()
    losses = {rate: row["loss"] for rate, row in rows.items() if row.get("loss") is not None}
    if losses and (best := min(losses, key=losses.__getitem__)) in contenders.BEYOND:
        yield measure(f"{who}@{contenders.BEYOND[best]:g}")


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure what is missing, print every row, and summarise all that is known."""
    wanted = options(arguments or [])
    known = {} if wanted.fresh else read_rows()
    made = {key: value for key, value in provenance().items() if key in ("commit", "date")}

    def measure(model: str, name: str) -> Row:
        row = known.get((model, name))
        if row is None:
            row = run_one(name, model, wanted.limit, once=wanted.once) | made
            append(row)
        print(line(model, name, row), flush=True)
        return row

    # Of a contender that the record knows only the best rate is there, and its grid is done.
    done = {
        (model, name.partition("@")[0]) for (model, name), row in known.items() if "rate" in row
    }

    def all_variants(pair: tuple[str, str]) -> None:
        who, model = pair
        if (model, who) not in done:
            list(variants(who, partial(measure, model)))

    # Posteriors one after the other: rows that are compared share the load of their minutes.
    pairs = [
        (who, model)
        for model in chosen(problems.names(), wanted.models)
        for who in chosen(contenders.CONTENDERS, wanted.contenders, ";")
    ]
    with ThreadPoolExecutor(wanted.jobs) as pool:
        list(pool.map(all_variants, pairs))
    return summaries.summary(read_rows())
