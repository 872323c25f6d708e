"""Twenty reference posteriors: errors against reference draws, time and verdict, with peers.

Errors are on the natural scale of the model: the worst parameter's |mean - reference mean| in
reference sds, and the smallest and largest ratio of sds. The reference itself has 10,000 draws, so
it knows a mean to 0.01 sd and an sd to 0.7 %. Every fit starts from zeros and gets no tuning; a
peer with a learning rate gets three and is shown at its best bound.
"""

from __future__ import annotations

import os
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import curvi
from benchmarks import posterior_peers as peers
from benchmarks import posteriors
from benchmarks.common import data_folder, verdict

NEEDS_DATA = "set CURVI_DATA to the folder that holds posteriordb/*.npz to run this benchmark"
ACCURATE_MEAN, ACCURATE_SD = 0.25, (0.7, 1.4)
LINEAR_MEAN, LINEAR_SD = 0.05, (0.88, 1.05)


def errors(mean, sd, draws) -> dict:
    reference, spread = draws.mean(axis=0), draws.std(axis=0, ddof=1)
    off = np.abs(np.asarray(mean) - reference) / spread
    ratio = np.asarray(sd) / spread
    if not (np.isfinite(off).all() and np.isfinite(ratio).all()):
        return {"mean_error": None, "sd_low": None, "sd_high": None}
    return {
        "mean_error": float(off.max()),
        "sd_low": float(ratio.min()),
        "sd_high": float(ratio.max()),
    }


def by_curvi(posterior, family) -> dict:
    density = posterior.density
    target = curvi.Target(density.log_density, jnp.zeros(density.dimension), density.constrain)
    began = time.perf_counter()
    said = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = curvi.fit(target, family=family, progress=False, on_failure="return")
        except curvi.CurviError as error:
            return {
                "mean_error": None, "sd_low": None, "sd_high": None, "converged": False,
                "outcome": type(error).__name__, "message": str(error)[:200], "flagged": True,
                "seconds": time.perf_counter() - began,
            }  # fmt: skip
        said = "; ".join(str(w.message)[:120] for w in caught)
    row = {
        "seconds": time.perf_counter() - began,
        "converged": result.converged,
        "outcome": result.outcome.name,
        "steps": result.steps,
        "elbo": result.elbo,
        "warnings": said,
        **errors(result.mean, result.sd, posterior.draws),
        "khat": float(result.khat),
        "relative_ess": float(result.relative_ess),
    }
    # What the library itself says: an outcome, a warning, or a sentence in the summary.
    row["flagged"] = bool(not result.converged or said or result.warnings)
    return row


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
        print(f"  {name:40s} {who:22s} {row['skipped'][:80]}", flush=True)
        return
    if row["mean_error"] is None:
        numbers = "no finite answer"
    else:
        numbers = (
            f"mean {row['mean_error']:9.3g} sd, sds {row['sd_low']:.3f} to {row['sd_high']:.3f}"
        )
    extra = (
        f"k {row['khat']:.2f} ess {row['relative_ess']:.2f}" if row.get("khat") is not None else ""
    )
    silent = "  SILENT" if row.get("flagged") is False and not accurate(row) else ""
    print(
        f"  {name:40s} {who:22s} {numbers}  {row['seconds']:6.2f} s  {row.get('outcome', '')} "
        f"{extra}{silent}",
        flush=True,
    )


def main() -> dict:
    folder = data_folder()
    if folder is None or not (folder / "posteriordb").is_dir():
        print(f"  skipped: {NEEDS_DATA}")
        return {"skipped": NEEDS_DATA}
    wanted = os.environ.get("CURVI_BENCH_PEERS", "numpyro,blackjax,pymc,dadvi")
    callers = {k: v for k, v in peers.PEERS.items() if k.split()[0].lower() in wanted.split(",")}
    table: dict[str, dict] = {}
    with jax.enable_x64(True):
        for name in posteriors.MODELS:
            posterior = posteriors.load(folder, name)
            rows = {}
            for family in (curvi.MeanField(), curvi.FullRank()):
                who = f"curvi {type(family).__name__}"
                rows[who] = by_curvi(posterior, family)
                show(name, who, rows[who])
            for who, call in callers.items():
                rows[who] = peers.measured(call, posterior, errors)
                show(name, who, rows[who])
            table[name] = rows
    return summary(table)


def summary(table) -> dict:
    full = {name: rows["curvi FullRank"] for name, rows in table.items()}
    linear = [full[name] for name in table if name in posteriors.LINEAR]
    silent = [
        f"{name}: {who}"
        for name, rows in table.items()
        for who, row in rows.items()
        if who.startswith("curvi") and not row["flagged"] and not accurate(row)
    ]
    met = {
        "linear_mean": all(
            r["mean_error"] is not None and r["mean_error"] <= LINEAR_MEAN for r in linear
        ),
        "linear_sd": all(
            r["mean_error"] is not None
            and r["sd_low"] >= LINEAR_SD[0]
            and r["sd_high"] <= LINEAR_SD[1]
            for r in linear
        ),
        "none_silently_wrong": not silent,
    }
    for name, ok in met.items():
        print(f"  {name}: {verdict(ok)}")
    return {
        "rows": table,
        "silent": silent,
        "met": met,
        "targets": {"linear_mean": LINEAR_MEAN, "linear_sd": LINEAR_SD},
        "accurate": {"mean": ACCURATE_MEAN, "sd": ACCURATE_SD},
    }
