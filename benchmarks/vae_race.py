"""The race on MNIST: who takes part, alternating runs, and ratios of processor seconds."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import curvi
from benchmarks.common import RESULTS, keep, recorded, verdict
from benchmarks.vae_runs import TARGETS, Run, reached
from benchmarks.vae_tuning import Cell, first_order, last_step
from curvi.paper.experiments._provenance import provenance

GOALS = {-110.0: 2.5, -105.0: 2.0, -102.0: 1.5}
ADAGRAD_GOAL = 5.0
RACE_SECONDS, LONGEST_SECONDS = 40.0, 150.0  # without a schedule, and with any
SEEDS = 3
KFAC, ALL_DIRECTIONS = curvi.KFAC(), curvi.KFAC(directions=None)
TOTAL_GRADIENTS = curvi.KFAC(path_derivative=False)
HORIZON_EPOCHS = 10
HF = curvi.HessianFree()


def known_parts(name: str) -> dict:
    """What an interrupted run of the same commit has kept; nothing otherwise."""
    kept = recorded(name)
    now, then = provenance(), kept.pop("provenance", {})
    same = all(now[key] == then.get(key) for key in ("commit", "modified"))
    return kept if same and not now["modified"] else {}


def say(text: str) -> None:
    print(f"  {text}", flush=True)


def label(name: str, choice: dict) -> str:
    """The name of a tuned rival."""
    kind = "averaged" if choice["averaged"] else "last"
    return f"{name} {' '.join(str(value) for value in Cell(**choice['cell']))} {kind}"


class Contender(NamedTuple):
    """A method, its batch size, the scale of the first weights, and when its run ends."""

    method: Any
    batch: int = 100
    scale: float | None = None
    steps: float = np.inf
    seconds: float = RACE_SECONDS
    prepared: Any = None  # the method whose coordinates and gradients are used


def contenders(tuned: dict, rows: int) -> dict[str, Contender]:
    """All of them; KFAC first."""
    horizon = HORIZON_EPOCHS * rows // 100
    found = {
        "kfac": Contender(KFAC),
        "kfac all directions": Contender(ALL_DIRECTIONS),
        "kfac total gradients": Contender(TOTAL_GRADIENTS),
        "kfac horizon": Contender(
            curvi.KFAC(horizon=horizon), steps=horizon, seconds=LONGEST_SECONDS
        ),
    }
    for name, results in tuned.items():
        for choice in results["choice"].values():
            cell = Cell(**choice["cell"])
            method = first_order(name, cell, rows, averaged=choice["averaged"])
            last = last_step(cell, rows)
            seconds = RACE_SECONDS if last == np.inf else LONGEST_SECONDS
            one = Contender(method, cell.batch, cell.init, last, seconds)
            found.setdefault(label(name, choice), one)
            if name == "adam":
                other = one._replace(prepared=KFAC)
                found.setdefault(f"prepared {label(name, choice)}", other)
    return found | {"hessian_free": Contender(HF, HF.usual_batch_size)}


def rounds_of(entries: dict[str, Contender], data: Any, quick: bool, kept: str) -> list[dict]:
    """Alternating runs on new seeds, judged on test images; what is done is kept on the way."""
    X, held = data.train[0], jnp.asarray(data.test[0])
    rounds: list[dict] = [] if quick else known_parts(kept).get("rounds", [])
    for seed in range(1, 2 if quick else 1 + SEEDS):
        if len(rounds) < seed:
            rounds.append({})
        row = rounds[seed - 1]
        for name, one in entries.items():
            if name in row:
                continue
            run = Run(one.method, X, held, batch=one.batch, scale=one.scale, seed=seed,
                      prepared=one.prepared)  # fmt: skip
            path = run.until(2.0 if quick else one.seconds, steps=one.steps).path
            row[name] = {"to": {str(t): reached(path, t) for t in TARGETS},
                         "final": path[-1].averaged, "seconds": path[-1].seconds,
                         "steps": path[-1].step,
                         "path": [[look.seconds, look.averaged] for look in path]}  # fmt: skip
            say(f"seed {seed} {name}: {row[name]['to']}, final {row[name]['final']:.2f}")
            if not quick:
                keep(kept, {"rounds": rounds})
    (RESULTS / f"{kept}.json").unlink(missing_ok=True)  # all of it is in what is returned
    return rounds


def patient_adagrad(tuned: dict, quick: bool) -> dict:
    """KFAC and an Adagrad that is given far more time, in a race of their own."""
    data = curvi.datasets.load("mnist")
    entries = {
        name: one if name == "kfac" else one._replace(seconds=LONGEST_SECONDS)
        for name, one in contenders(tuned, len(data.train[0])).items()
        if name == "kfac" or name.startswith("adagrad")
    }
    rounds = rounds_of(entries, data, quick, "vae_adagrad_race")
    choices = tuned["adagrad"]["choice"]
    rivals = {"adagrad": {t: label("adagrad", choice) for t, choice in choices.items()}}
    ratios = _ratios(rounds, rivals)
    say(f"{ratios}")
    return {"rounds": rounds, "ratios": ratios, "seconds": LONGEST_SECONDS}


def race(tuned: dict, quick: bool) -> dict:
    """Stage two: all contenders."""
    data = curvi.datasets.load("mnist")
    rounds = rounds_of(contenders(tuned, len(data.train[0])), data, quick, "vae_race")
    rivals = {
        name: {target: label(name, choice) for target, choice in results["choice"].items()}
        for name, results in tuned.items()
    }
    rivals["adam on the same coordinates and gradients"] = {
        target: f"prepared {name}" for target, name in rivals["adam"].items()
    }
    for name in ("kfac all directions", "kfac total gradients", "kfac horizon", "hessian_free"):
        rivals[name] = {str(target): name for target in GOALS}
    ratios = _ratios(rounds, rivals)
    return {"rounds": rounds, "rivals": rivals, "ratios": ratios, "met": _met(rounds, ratios),
            "hessian_free": _hessian_free(rounds)}  # fmt: skip


def _hessian_free(rounds: list[dict]) -> list[float | None]:
    """Of every seed: seconds of the best Adagrad to its best bound over those of Hessian-free."""
    found: list[float | None] = []
    for row in rounds:
        path = max((r["path"] for n, r in row.items() if n.startswith("adagrad ")),
                   key=lambda path: max(bound for _, bound in path))  # fmt: skip
        best = max(bound for _, bound in path)
        needed = next(s for s, bound in path if bound >= best)
        mine = next((s for s, b in row["hessian_free"]["path"] if b >= best), None)
        found.append(None if mine is None else needed / mine)
    say(f"Adagrad to its best bound / hessian_free to the same: {found}")
    return found


def _ratios(rounds: list[dict], rivals: dict) -> dict:
    """Medians of rival / kfac seconds.

    What the rival never reached counts as its whole run, what kfac never reached as zero.
    """
    ratios = {}
    for rival, labels_ in rivals.items():
        for target, name in labels_.items():
            pairs = [
                (r[name]["to"][target], r[name]["seconds"], r["kfac"]["to"][target])
                for r in rounds
                if name in r
            ]
            found = [0.0 if b is None else (a or most) / b for a, most, b in pairs]
            ratios[f"{rival} {target}"] = {
                "ratio": statistics.median(found),
                "pairs": len(found),
                "at_least": any(a is None for a, _, _ in pairs),
            }
    return ratios


def _after_equal_time(row: dict) -> bool:
    """Whether kfac's bound at the end of the shorter run is at least that of every Adam then."""

    def at(name: str, end: float) -> float:
        path = np.asarray(row[name]["path"])
        return float(np.interp(end, path[:, 0], path[:, 1]))

    rivals = [name for name in row if name.startswith("adam ")]
    ends = {name: min(row[name]["seconds"], row["kfac"]["seconds"]) for name in rivals}
    return all(at("kfac", end) >= at(name, end) for name, end in ends.items())


def _met(rounds: list[dict], ratios: dict) -> dict:
    goals = {f"adam {target}": goal for target, goal in GOALS.items()}
    goals |= {f"adagrad {target}": ADAGRAD_GOAL for target in GOALS}
    met = {name: ratios[name]["ratio"] >= goal for name, goal in goals.items()}
    met["bound after equal time"] = all(_after_equal_time(r) for r in rounds)
    for name, ok in met.items():
        say(f"{name}: {verdict(ok)} ({ratios.get(name, {}).get('ratio')})")
    return met
