"""``family="auto"``: rungs in the order of what they cost, until the answer is right.

`LADDER` is a tuple; ``fit(..., ladder=...)`` takes another one, with rungs of one's own in it. The
ladder begins with a first run of full rank or, where there are many coordinates, with a sparse
precision. TrustRegion with growing draws, replicates and linear response is the machine for every
other family: it serves minibatches, meshes and families that a user has chosen, where draws of q
alone cannot be corrected. `inference/_inputs.py` decides which of the two runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from curvi._core.errors import Outcome
from curvi._core.run import Phase
from curvi._core.threads import one_blas_thread
from curvi.diagnostics import FitResult
from curvi.engine import Budget, Execution, Resources
from curvi.inference.ladder._other_modes import OtherModes, Restarts
from curvi.inference.ladder._rungs import (
    HMC,
    AllEntries,
    ConditionalOnGlobals,
    FollowDenseRows,
    FreshStart,
    ImportanceWeights,
    Recentre,
)
from curvi.inference.ladder._state import Rung, State
from curvi.targets import AbstractTarget

_CUT_SHORT = (
    "Interrupted while the answer was corrected: the best q so far is returned, and result.rungs "
    "tells how well it fits."
)
_NO_SEARCH = (
    "Interrupted while other modes were looked for: the answer is corrected, but modes that no "
    "draw came near may have been missed."
)
_OUT_OF_TIME = (
    "The time budget ended while the answer was corrected: means and sds may be wrong, and "
    "result.rungs tells how far it came; raise time_budget."
)
_FAILED = "The first q was lost ({}); the answer comes from other runs, which result.rungs lists."
ANSWER: tuple[Rung, ...] = (ConditionalOnGlobals(), FollowDenseRows(), ImportanceWeights(), HMC())
LADDER: tuple[Rung, ...] = (
    FreshStart(), AllEntries(), Recentre(), *ANSWER, Restarts(ANSWER), OtherModes(),
)  # fmt: skip


def climb(
    ladder: Sequence[Rung], target: AbstractTarget, resources: Resources, budget: Budget,
    execution: Execution, mc_tolerance: float | None, first: FitResult,
) -> FitResult:  # fmt: skip
    """The result of the first run with the answer of the rungs that apply.

    Ctrl-C ends the climb with what the rungs before have found.
    """
    state = State.of(target, first, resources, budget, execution, mc_tolerance)
    with one_blas_thread(), Phase("correcting") as phase:  # products are small: one thread
        for rung in ladder:
            state = rung.climb(state) if rung.applies(state) else state
            if state.failed:  # there is no q to climb with
                break
        result = state.result(first)
    if phase.interrupted:
        message = _NO_SEARCH if state.trusted else _CUT_SHORT
        ended = state.result(first)
        return replace(ended, outcome=Outcome.INTERRUPTED, message=message, interrupted=True)
    if first.outcome.is_failure and not state.failed and result.correction is not None:
        result = replace(result, outcome=Outcome.CONVERGED, message=_FAILED.format(first.outcome))
    if state.trusted or not ladder or state.budget.left() > 0:
        return result
    return replace(result, outcome=Outcome.BUDGET, message=_OUT_OF_TIME)
