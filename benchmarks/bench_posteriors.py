"""Thirty posteriors: errors against references, time and verdict, with peers in the same run.

Twenty have reference draws (CURVI_DATA), ten are our own with long NUTS runs. Errors are on the
natural scale of the model: |mean - reference| in reference sds, and ratios of sds. Every fit
starts from zeros and gets no tuning; a peer with a learning rate gets three and is shown at its
best bound. Seconds are those of a first call (compilation included), then of a second one.
CURVI_BENCH_PEERS chooses peers, CURVI_BENCH_MODELS models, both by parts of their names.
"""

from __future__ import annotations

import os
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import curvi
from benchmarks import own_models, posteriors
from benchmarks import posterior_peers as peers
from benchmarks import posterior_summary as summaries
from benchmarks.common import data_folder

NEEDS_DATA = "set CURVI_DATA to the folder that holds posteriordb/*.npz to run this benchmark"
PEER_SECONDS = 100.0  # of first calls of all models; the rest is reported as skipped
WARM_UP = "own-logistic"


def finite(value) -> float | None:
    """What JSON can hold."""
    return float(value) if value is not None and np.isfinite(value) else None


def errors(mean, sd, posterior) -> dict:
    off = np.abs(np.asarray(mean) - posterior.mean) / posterior.sd
    ratio = np.asarray(sd) / posterior.sd
    if not (np.isfinite(off).all() and np.isfinite(ratio).all()):
        return {"mean_error": None, "sd_low": None, "sd_high": None}
    return {
        "mean_error": float(off.max()),
        "mean_error_average": float(off.mean()),
        "sd_low": float(ratio.min()),
        "sd_high": float(ratio.max()),
        "sd_error_average": float(np.abs(ratio - 1).mean()),
    }


def fit_one(posterior, family, *, respond):
    """One call as a user makes it: the fit, its moments, and linear response where asked for."""
    density = posterior.density
    target = curvi.Target(density.log_density, jnp.zeros(density.dimension), density.constrain)
    result = curvi.fit(target, family=family, progress=False, on_failure="return")
    sd, refused = result.sd, ""
    if respond and result.converged:
        try:
            sd = result.linear_response()
        except curvi.NumericalError as error:
            refused = str(error)[:200]
    sentences = [str(one)[:200] for one in result.warnings] + ([refused] if refused else [])
    return result, np.asarray(result.mean), np.asarray(sd), sentences


def by_curvi(posterior, family, *, respond) -> dict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # every sentence is in result.warnings as well
        began = time.perf_counter()
        try:
            result, mean, sd, sentences = fit_one(posterior, family, respond=respond)
        except curvi.CurviError as error:
            return {
                "mean_error": None, "sd_low": None, "sd_high": None, "converged": False,
                "outcome": type(error).__name__, "message": str(error)[:200], "flagged": True,
                "seconds": time.perf_counter() - began,
            }  # fmt: skip
        cold = time.perf_counter() - began
        began = time.perf_counter()
        fit_one(posterior, family, respond=respond)
    return {
        "seconds": cold,
        "seconds_warm": time.perf_counter() - began,
        "converged": result.converged,
        "outcome": result.outcome.name,
        "steps": result.steps,
        "num_draws": result.draws.num_draws,
        "elbo": finite(result.elbo),
        "mc_error": finite(result.mc_error),
        "warnings": sentences,
        **errors(mean, sd, posterior),
        "khat": finite(np.clip(result.khat, -9, 99)),
        "relative_ess": finite(result.relative_ess),
        # What the library itself says: an outcome, a warning, or a sentence in the summary.
        "flagged": bool(not result.converged or sentences),
    }


OURS = {
    "curvi MeanField, linear response": (curvi.MeanField(), True),
    "curvi FullRank": (curvi.FullRank(), False),
}


def models(folder):
    """Every posterior there is, one at a time."""
    wanted = os.environ.get("CURVI_BENCH_MODELS", "").split(",")
    for name in [*posteriors.MODELS, *own_models.OWN]:
        if not any(part in name for part in wanted):
            continue
        if name in own_models.OWN:
            yield own_models.load(name)
        elif folder is not None:
            yield posteriors.load(folder, name)


def warm_up(callers) -> None:
    """Load the libraries and what every fit shares, ours and the peers': no model pays for it."""
    result = curvi.fit(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2), progress=False)
    _ = result.khat, result.summary()
    for library in ("pymc", "pymc_extras.inference", "numpyro", "blackjax"):
        try:
            __import__(library)
        except ImportError:
            continue
    for call in callers.values():
        peers.measured(call, own_models.load(WARM_UP), errors)


def main() -> dict:
    folder = data_folder()
    if folder is None or not (folder / "posteriordb").is_dir():
        print(f"  the twenty reference posteriors are left out: {NEEDS_DATA}")
        folder = None
    wanted = os.environ.get("CURVI_BENCH_PEERS", "numpyro,blackjax,pymc,dadvi").split(",")
    callers = {k: v for k, v in peers.PEERS.items() if k.split()[0].lower() in wanted}
    spent = dict.fromkeys(callers, 0.0)
    table: dict[str, dict] = {}
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warm_up(callers)
        for posterior in models(folder):
            rows = table[posterior.name] = {}
            for who, (family, respond) in OURS.items():
                rows[who] = by_curvi(posterior, family, respond=respond)
                summaries.show(posterior.name, who, rows[who])
            for who, call in callers.items():
                late = {"skipped": f"{PEER_SECONDS:.0f} s for this peer are spent"}
                measure = spent[who] < PEER_SECONDS
                again = who == summaries.DADVI
                rows[who] = (
                    peers.measured(call, posterior, errors, again=again) if measure else late
                )
                spent[who] += rows[who].get("seconds_all", rows[who].get("seconds", 0.0))
                summaries.show(posterior.name, who, rows[who])
            summaries.keep_partial(table)
    return summaries.summary(table)
