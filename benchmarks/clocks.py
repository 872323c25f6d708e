"""Processor seconds with what compilation takes of them, and NUTS timed by one rule.

Compilation is what JAX reports of itself: tracing, lowering, XLA. It reports spans of the wall
clock; a thread that notes both clocks every few milliseconds turns them into processor seconds, so
that other work on the machine counts for nobody.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.monitoring
import numpy as np

WANTED = 400  # effective draws of the worst quantity: every mean is known to 0.05 sd
MOST_BATCHES = 12  # of draws, until the worst quantity has that many
_COMPILING = "/jax/core/compile/"
_INTERVAL = 0.005  # seconds between two looks at the clocks
_spans: list[tuple[float, float]] = []


def _listen(event: str, seconds: float, **_: Any) -> None:
    if event.startswith(_COMPILING):
        now = time.perf_counter()
        _spans.append((now - seconds, now))


jax.monitoring.register_event_duration_secs_listener(_listen)


def pin_to_one_core() -> None:
    """Keep this process, and threads that it will start, on one core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


class Spent:
    """Processor seconds of a block, and how many of them compiled; known when it has ended."""

    seconds = 0.0
    compiling = 0.0

    @property
    def running(self) -> float:
        """What is left without compilation."""
        return self.seconds - self.compiling


@contextmanager
def spent() -> Iterator[Spent]:
    """Measure a block."""
    found, first, ended = Spent(), len(_spans), threading.Event()
    looks = [(time.perf_counter(), time.process_time())]

    def look() -> None:
        while not ended.wait(_INTERVAL):
            looks.append((time.perf_counter(), time.process_time()))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
        looks.append((time.perf_counter(), time.process_time()))
        found.seconds = looks[-1][1] - looks[0][1]
        found.compiling = _processor_seconds(_spans[first:], np.array(looks))


def _processor_seconds(spans: list[tuple[float, float]], looks: np.ndarray) -> float:
    """Of a union of spans: the trace of an outer function holds those of the inner ones."""
    total, end = 0.0, -np.inf
    for begin, stop in sorted(spans):
        if stop > end:
            first, last = np.interp([max(begin, end), stop], looks[:, 0], looks[:, 1])
            total, end = total + float(last - first), stop
    return total


class Sampled(NamedTuple):
    """What a run of NUTS gave and took.

    Attributes
    ----------
    draws : sites by name, each (chains, draws, ...)
    values : the quantities that are compared, (chains, draws, quantities)
    ess : smallest effective sample size of them
    compiling : seconds of compilation in one call: a plain ``run`` compiles its loop once
    warming, drawing : seconds of warm-up and of all draws, without compilation
    divergences : of all draws
    """

    draws: dict[str, np.ndarray]
    values: np.ndarray
    ess: float
    compiling: float
    warming: float
    drawing: float
    divergences: int

    @property
    def running(self) -> float:
        """Seconds without compilation for WANTED effective draws of the worst quantity."""
        return self.warming + self.drawing * WANTED / self.ess

    @property
    def seconds(self) -> float:
        """The same of a call, with its compilation."""
        return self.compiling + self.running

    @property
    def enough(self) -> bool:
        """Whether there are WANTED effective draws; else the seconds are an extrapolation."""
        return self.ess >= WANTED


def nuts(
    kernel: Callable[[], Any],
    values: Callable[[dict[str, np.ndarray]], np.ndarray],
    *,
    seed: int = 0,
    num_chains: int = 4,
    num_warmup: int = 1000,
    num_samples: int = 1000,
    init_params: Any = None,
    arguments: dict[str, Any] | None = None,
) -> Sampled:
    """Run NUTS as one calls it, and longer until its worst quantity has WANTED effective draws.

    Parameters
    ----------
    kernel : callable
        Makes the kernel, of the model as its users write it.
    values : callable
        From draws by site, (chains, draws, ...), to the quantities, (chains, draws, quantities).
    """
    from numpyro.infer import MCMC

    given = arguments or {}
    run = MCMC(
        kernel(), num_warmup=num_warmup, num_samples=num_samples, num_chains=num_chains,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    with spent() as warm:
        run.warmup(jax.random.key(seed), init_params=init_params, **given)
        jax.block_until_ready(run.last_state.z)
    batches: list[dict[str, np.ndarray]] = []
    drawing, divergences, ess = 0.0, 0, 0.0
    while ess < WANTED and len(batches) < MOST_BATCHES:
        run.post_warmup_state = run.last_state
        with spent() as draw:
            run.run(run.last_state.rng_key, extra_fields=("diverging",), **given)
            found = jax.block_until_ready(run.get_samples(group_by_chain=True))
        drawing += draw.running
        divergences += int(run.get_extra_fields()["diverging"].sum())
        found = found if isinstance(found, dict) else {"z": found}
        batches.append({name: np.asarray(part) for name, part in found.items()})
        whole = {name: np.concatenate([b[name] for b in batches], axis=1) for name in batches[0]}
        table = np.asarray(values(whole), float)
        ess = float(effective(table).min())
    return Sampled(whole, table, ess, warm.compiling, warm.running, drawing, divergences)


def effective(draws: np.ndarray) -> np.ndarray:
    """Effective draws of every quantity; of a constant, as many as there are."""
    from numpyro.diagnostics import effective_sample_size

    size = np.asarray(effective_sample_size(draws), float)
    constant = draws.std(axis=(0, 1)) <= 1e-12 * (1 + np.abs(draws.mean(axis=(0, 1))))
    return np.where(constant, float(draws.shape[0] * draws.shape[1]), size)
