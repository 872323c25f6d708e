"""The run of a call: its clock, what changes inside of it, and the one handler of Ctrl-C."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace

import pytest

import curvi
from curvi._core import run
from curvi._core.run import Clock, OutOfTime, Phase, current_run, within
from curvi.engine import opened

pytestmark = pytest.mark.float64_only


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still; the test sets its time."""
    at = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: at.seconds))
    return at


def test_compilation_and_the_time_before_a_call_do_not_count_against_its_budget(now):
    now.seconds = 5.0
    clock = Clock(10.0)
    now.seconds = 12.0
    assert clock.left() == 3.0
    clock.compiled(4.0)
    assert clock.left() == 7.0
    assert clock.elapsed == 7.0
    assert Clock().left() == float("inf")


def test_a_call_within_a_call_has_the_shorter_of_both_budgets(now):
    def inner(time_budget=None):
        with opened(locals(), "inner") as call:
            current_run().clock.compiled(1.0)
            return call.left()

    def outer(seconds, time_budget=None):
        with opened(locals(), "outer") as call:
            return inner(time_budget=seconds), call.left()

    assert outer(3.0, time_budget=10.0) == (4.0, 11.0)  # compilation is given back to both
    assert outer(30.0, time_budget=10.0) == (11.0, 11.0)
    assert outer(None) == (float("inf"), float("inf"))
    assert current_run().clock is None


def test_a_budget_that_is_none_is_refused_before_the_call():
    def call(time_budget=None):
        with opened(locals(), "call"):
            raise AssertionError

    with pytest.raises(curvi.InputError, match="time_budget is -1"):
        call(time_budget=-1)


@pytest.mark.parametrize("end", ["Ctrl-C", "time", "nothing"])
def test_a_phase_goes_on_below_where_it_was_left(end, now):
    def call(time_budget=1.0):
        with opened(locals(), "call") as whole:
            with Phase("working") as phase:
                if end == "Ctrl-C":
                    signal.raise_signal(signal.SIGINT)
                now.seconds += 2.0 * (end == "time")
                whole.check()
                return "everything"
            return phase.outcome.name

    expected = {"Ctrl-C": "INTERRUPTED", "time": "BUDGET", "nothing": "everything"}
    assert call() == expected[end]


def test_a_phase_lets_every_other_exception_pass():
    with pytest.raises(ZeroDivisionError), Phase("working") as phase:
        raise ZeroDivisionError
    assert not phase.left
    with pytest.raises(SystemExit), Phase("working"):
        raise SystemExit


def test_what_a_run_allows_is_that_of_its_own_block_and_thread():
    seen = []
    with within(memory=7):
        with within(memory=9):
            assert current_run().memory == 9
            other = threading.Thread(target=lambda: seen.append(current_run().memory))
            other.start()
            other.join()
        assert current_run().memory == 7
    assert current_run().memory is None
    assert seen == [None]


def test_work_outside_of_a_call_has_no_limit():
    current_run().check()
    run.check_deadline()
    with run.deadline(-1.0), pytest.raises(OutOfTime):
        run.check_deadline()
