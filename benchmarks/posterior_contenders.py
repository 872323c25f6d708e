"""Who takes part, by name; a name ``WHO@RATE`` is a method with a learning rate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.posterior_ours import OURS
from benchmarks.posterior_peers import WITH_RATE, WITHOUT_RATE
from benchmarks.posterior_samplers import SAMPLERS

RATES = (1e-3, 1e-2, 1e-1)  # the same for everybody
BEYOND = {1e-3: 1e-4, 1e-1: 1.0}  # one more where the best lies at an edge
# curvi loads its rooms when they are first used; imports count for nobody.
_ROOMS = ("curvi.inference", "curvi.interop", "numpyro", "scipy.stats", "arviz_stats")
CONTENDERS = [*OURS, *SAMPLERS, *WITHOUT_RATE, *WITH_RATE]


def has_rate(who: str) -> bool:
    """Whether a contender needs a learning rate."""
    return who in WITH_RATE


def find(name: str) -> tuple[Callable[[Any], dict[str, Any]], tuple[str, ...]]:
    """How a contender is called, and what is imported before its clock starts."""
    who, _, rate = name.partition("@")
    if who in OURS:
        return OURS[who], _ROOMS
    if who in WITH_RATE:
        call, libraries = WITH_RATE[who]
        return (lambda problem: call(problem, float(rate))), libraries
    call, libraries = (WITHOUT_RATE | SAMPLERS)[who]
    return partial(call), libraries
