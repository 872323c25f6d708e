"""Outcome codes: how a run ended, and one sentence of advice for each end."""

from __future__ import annotations

import enum


class Outcome(enum.IntEnum):
    """How a run ended; ``outcome.sentence`` says what it means and what to do."""

    RUNNING = 0
    CONVERGED = 1
    BUDGET = 2
    STALLED = 3
    NON_FINITE = 4
    DIVERGED = 5
    INTERRUPTED = 6
    IMPRECISE = 7

    @property
    def sentence(self) -> str:
        """What the code means, and what to do about it."""
        return _SENTENCES[self]

    @property
    def is_failure(self) -> bool:
        """Whether this is a numerical failure, as opposed to an end that the user asked for."""
        return self in (Outcome.STALLED, Outcome.NON_FINITE, Outcome.DIVERGED)


_SENTENCES = {
    Outcome.RUNNING: "The run has not ended.",
    Outcome.CONVERGED: (
        "Converged: the gain left is below the tolerance (on fresh samples: its standard error)."
    ),
    Outcome.BUDGET: (
        "The budget of steps or time ran out before convergence was established; "
        "raise max_steps or time_budget, or loosen tolerance."
    ),
    Outcome.STALLED: (
        "No acceptable step was found although the gradient is not small; check the log density "
        "for discontinuities, try float64, another start or another family."
    ),
    Outcome.NON_FINITE: (
        "The objective turned non-finite again and again; the last finite state is returned. "
        "Check the log density for overflow, log of zero or unbounded support."
    ),
    Outcome.DIVERGED: (
        "The objective ended far worse than it started; the method is not suited to this problem "
        "as configured. Try method=TrustRegion(), larger batches or more draws."
    ),
    Outcome.INTERRUPTED: (
        "Interrupted by the user; the last state is returned. Start again from its mean with "
        "position=, or use it as it is."
    ),
    Outcome.IMPRECISE: (
        "Converged on its draws, but they are too few: their Monte-Carlo error is above the "
        "tolerance. Pass a larger num_draws, or choose a family with fewer parameters."
    ),
}
