"""Posteriors of known moments are answered, or the answer carries a warning."""

from __future__ import annotations

import pytest

from tests.adversarial.posteriors import Posterior, judged, posteriors

SHORT = {
    "modes: narrow, one, 0.9, D = 1": "right",
    "modes: narrow, any 0, 0.5, D = 5": "right",
    "modes: narrow, pair, 0.9, D = 3": "right",
    "modes: three, 5.0 apart, D = 2": "right",
    "rings: radius 5.0, width 0.5, D = 2": "right",
    "ripples: 5.0 high, 2.0 waves, D = 5": "right",
    "tails: t 2.5 at -1, D = 100": "right",
    "spikes: width 0.01, weight 0.8, D = 1": "flagged",
    "single: normal, mean 1e+06, sd 1.0, D = 1": "right",
    "single: normal, mean 1e+07, sd 0.1, D = 1": "flagged",
}
ALL = {f"{one.kind}: {one.name}": one for one in posteriors()}
SILENT, FALSE_ALARMS = 0.02, 0.08  # shares of all posteriors


@pytest.mark.float64_only
@pytest.mark.parametrize("name", SHORT)
def test_a_hostile_posterior_is_answered_or_flagged(name):
    found = judged(ALL[name])
    if SHORT[name] == "right":
        assert found.verdict == "right", found
    else:
        assert found.flagged, found


@pytest.mark.slow
@pytest.mark.float64_only
def test_few_hostile_posteriors_are_silent_or_flagged_for_nothing():
    def verdict(one: Posterior) -> str:
        return judged(one).verdict

    found = [verdict(one) for one in ALL.values()]
    assert found.count("silent") <= SILENT * len(found)
    assert found.count("false alarm") <= FALSE_ALARMS * len(found)
