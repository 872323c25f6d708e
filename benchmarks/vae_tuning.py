"""How settings of auto-encoders are chosen: on the last 5,000 training images, not on test images.

``python -m benchmarks.vae_tuning adam | adagrad | kfac`` prints the tables; that of KFAC is kept.

First-order methods are tuned by successive halving: every cell of the grid runs for a few seconds,
the better ones go on from where they are. Halving is done among constant and among decayed rates
apart, because a decayed rate shows its worth late; every target of the race may choose another
cell. Last and averaged parameters are judged in one
run, since averaging does not change the steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
import optax

import curvi
from benchmarks.common import RESULTS, keep
from benchmarks.vae_runs import AVERAGED_IMAGES, Run, rated, reached, splits

RUNGS = ((2.0, 0.25), (7.0, 0.34), (35.0, 1.0))  # seconds, and the part that goes on
RACED = (-110.0, -105.0, -102.0)
SCHEDULES = ("constant", "cosine 5", "cosine 15", "cosine 30")  # epochs until the rate is zero
ADAM_RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
# An earlier grid had batches of 500 too: after seven seconds they were four nats behind.
ADAM = tuple(itertools.product(ADAM_RATES, (100, 200), (None, 0.01), SCHEDULES))
ADAGRAD_RATES = (0.003, 0.01, 0.03, 0.1)
ADAGRAD = tuple(itertools.product(ADAGRAD_RATES, (100,), (None, 0.01), ("constant",)))
KFAC_TARGETS = (-115.0, -110.0, -107.0, -105.0)
KFAC = (
    {}, {"directions": 120}, {"damping": 0.03}, {"damping": 0.003}, {"plateau": 600},
    {"step_size": 0.03}, {"step_size": 0.08}, {"clip": 3.0}, {"clip": 1.0}, {"horizon": 2750},
)  # fmt: skip


class Cell(NamedTuple):
    """One setting of a first-order method."""

    rate: float
    batch: int
    init: float | None
    schedule: str


def _transformation(name):
    return {"adam": optax.scale_by_adam, "adagrad": optax.scale_by_rss}[name]()


def last_step(cell, rows):
    """The step at which the rate of a cell is zero; infinite for a constant one."""
    if cell.schedule == "constant":
        return np.inf
    return int(cell.schedule.removeprefix("cosine ")) * rows // cell.batch


def _decay(cell, rows):
    last = last_step(cell, rows)
    return None if last == np.inf else optax.cosine_decay_schedule(1.0, last)


def first_order(name, cell, rows, *, averaged):
    """The method of a cell, as a user would write it."""
    share = _decay(cell, rows)
    rate = cell.rate if share is None else lambda step: cell.rate * share(step)
    method = curvi.FirstOrder(
        {"adam": optax.adam, "adagrad": optax.adagrad}[name](rate), check_updates=False
    )
    window = max(1, AVERAGED_IMAGES // cell.batch)
    return curvi.Averaged(method, window=window) if averaged else method


def halving(name, grid, X, held, *, rungs=RUNGS, report=print):
    """(choice for every raced target, table of all cells).

    Cells that reach the last rung are watched there: the choice for a target is the cell, and its
    last or averaged parameters, that crosses it first; if none does, the highest bound at the end.
    Rates are data of one compiled program per batch size and schedule.
    """
    cells = [Cell(*entry) for entry in grid]
    methods = {}
    for cell in cells:
        window = max(1, AVERAGED_IMAGES // cell.batch)
        rule = rated(_transformation(name), _decay(cell, len(X)))
        methods.setdefault(
            (cell.batch, cell.schedule),
            curvi.Averaged(curvi.FirstOrder(rule, check_updates=False), window=window),
        )
    runs: dict[Cell, Run] = {}
    table = {}
    for number, (seconds, part) in enumerate(rungs):
        final = number == len(rungs) - 1
        for cell in cells:
            if cell not in runs:
                runs[cell] = Run(
                    methods[cell.batch, cell.schedule], X, held, batch=cell.batch, scale=cell.init,
                    rate=cell.rate, like=next(iter(runs.values()), None),
                )  # fmt: skip
            look = runs[cell].until(seconds, watched=final, last=True).path[-1]
            table[cell] = {**cell._asdict(), "seconds": look.seconds, "last": _number(look.last),
                           "averaged": _number(look.averaged), "rung": number}  # fmt: skip
            report(f"    {name} {table[cell]}")
        cells = [
            cell
            for schedule in SCHEDULES
            for cell in _best([c for c in cells if c.schedule == schedule], table, part)
        ]
        runs = {cell: runs[cell] for cell in cells}
    paths = {cell: runs[cell].path for cell in cells}
    return {target: _fastest(paths, table, target) for target in RACED}, list(table.values())


def at_the_edge(cell, rates):
    """Whether the rate is the smallest or largest of its grid: a better one may lie outside."""
    return cell.rate in (min(rates), max(rates))


def _fastest(paths, table, target):
    """(cell, whether averaged) that crosses a target first, or ends highest."""

    def order(choice):
        cell, kind = choice
        seconds = reached(paths[cell], target, kind=kind)
        end = table[cell][kind]
        return np.inf if seconds is None else seconds, np.inf if end is None else -end

    cell, kind = min(itertools.product(paths, ("last", "averaged")), key=order)
    return cell, kind == "averaged"


def _number(value):
    return value if math.isfinite(value) else None


def _best(cells, table, part):
    def score(cell):
        return max(table[cell][kind] or -np.inf for kind in ("last", "averaged"))

    kept = max(1, math.ceil(part * len(cells))) if cells else 0
    return sorted(cells, key=score, reverse=True)[:kept]


def kfac_variations(X, held, *, steps=2750, known=(), report=print):
    """Steps to validation bounds of the default and of settings around it, one change at a time.

    Five epochs each. Steps do not depend on the machine; all settings cost about the same per step.
    Yields the table after every setting; what is ``known`` is not run again.
    """
    table = list(known)
    for change in KFAC:
        if any(row["change"] == change for row in table):
            continue
        path = Run(curvi.KFAC(**change), X, held).until(steps=steps).path
        to = {str(target): reached(path, target, clock="step") for target in KFAC_TARGETS}
        table.append({"change": change, "steps_to": to, "final": _number(path[-1].averaged)})
        report(f"    kfac {table[-1]}")
        yield table


def keep_kfac(X, held):
    """Write the variations to the results; those of the same defaults are kept."""
    path, defaults = RESULTS / "vae_settings.json", asdict(curvi.KFAC())
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known = old["variations"] if old.get("defaults") == defaults else ()
    for table in kfac_variations(X, held, known=known):
        keep("vae_settings", {"defaults": defaults, "variations": table})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("adam", "adagrad", "kfac"))
    chosen = parser.parse_args().what
    images, validation = splits(curvi.datasets.load("mnist"))
    if chosen == "kfac":
        keep_kfac(images, validation)
    else:
        print(halving(chosen, ADAM if chosen == "adam" else ADAGRAD, images, validation)[0])
