"""``time_budget`` holds for every phase: a clock that jumps at its beginning ends the fit there."""

from __future__ import annotations

import importlib
import time
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core import run as context
from curvi.diagnostics import _evaluation as evaluation
from curvi.engine import _drivers as drivers
from curvi.solvers._flat import FlatObjective
from tests.adversarial.outcomes import warned
from tests.adversarial.test_interrupts import build, correlated, simulate, skewed

pytestmark = [
    pytest.mark.float64_only,
    pytest.mark.filterwarnings("ignore::curvi.MisfitWarning"),
]
HOUR = 3600.0
QUICK = {
    "execution": "eager",
    "progress": False,
    "time_budget": HOUR,
    "family": curvi.MeanField(),
}


def counted(monkeypatch, place, before=None):
    """Count the calls of a function, and do something at the first."""
    module, _, name = place.rpartition(".")
    whole, calls = getattr(importlib.import_module(module), name), []

    def counting(*arguments, **options):
        calls.append(None)
        if before is not None and len(calls) == 1:
            before()
        return whole(*arguments, **options)

    monkeypatch.setattr(place, counting)
    return calls


class Clock:
    """Two hours later from the moment on that ``jump`` is called."""

    def __init__(self, monkeypatch):
        self.late = 0.0
        seconds = SimpleNamespace(perf_counter=lambda: time.perf_counter() + self.late)
        monkeypatch.setattr(context, "time", seconds)

    def jump(self):
        self.late = 2 * HOUR


@pytest.mark.parametrize(
    ("place", "density", "options"),
    [
        ("curvi.inference._fit.starting_params", skewed, {}),
        ("curvi.inference._fit.laplace_within", skewed, {"init": "laplace"}),
        ("curvi.inference._initial.best_width", skewed, {"num_starts": 20}),
        ("curvi.inference._initial.evaluate", correlated, {}),
        ("curvi.inference._growth.descend_from_saddle", skewed, {}),
        ("curvi.inference._growth.replicates", skewed, {}),
        ("curvi.inference._growth.next_count", skewed, {"draws": "iid", "mc_tolerance": 0.01}),
    ],
    ids=lambda item: item.rpartition(".")[2] if isinstance(item, str) else "",
)
def test_no_run_begins_when_the_time_is_up(place, density, options, monkeypatch):
    clock, begun = Clock(monkeypatch), []

    def jump():
        clock.jump()
        begun.append(len(drivers_made))

    drivers_made = counted(monkeypatch, "curvi.engine._loop.make_driver")
    counted(monkeypatch, place, jump)
    result = warned(
        lambda: curvi.fit(density, jnp.zeros(2), on_failure="return", **QUICK, **options),
        curvi.NotConvergedWarning,
        "time_budget" if "next_count" not in place else "budget",
    )
    assert begun == [len(drivers_made)]
    assert not result.converged
    assert np.isfinite(result.elbo)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))


def judged_with(monkeypatch, **effort):
    defaults = evaluation.evaluate_all.__kwdefaults__
    monkeypatch.setitem(defaults, "effort", replace(evaluation.EFFORT, **effort))


def test_the_bound_is_evaluated_on_fewer_draws_when_the_time_is_up(monkeypatch):
    judged_with(monkeypatch, most_at_once=0.0)
    for late, draws in ((False, 1024), (True, 32)):
        clock = Clock(monkeypatch)
        with monkeypatch.context() as patch:
            if late:
                counted(patch, "curvi.inference._fit.evaluate_all", clock.jump)
            result = curvi.fit(skewed, jnp.zeros(2), num_starts=1, **QUICK)
        assert result.log_ratio.shape == (draws,)
        assert result.elbo_se > 0
        assert np.isfinite(result.importance().mean).all()


def test_an_evaluation_in_blocks_is_the_one_at_once(monkeypatch):
    whole = curvi.fit(skewed, jnp.zeros(2), **QUICK)
    judged_with(monkeypatch, most_at_once=0.0, wide=0.0)  # blocks of 8 draws
    blocks = curvi.fit(skewed, jnp.zeros(2), **QUICK)
    np.testing.assert_allclose(blocks.log_ratio, whole.log_ratio, rtol=1e-12, atol=1e-12)
    assert blocks.elbo == pytest.approx(whole.elbo, rel=1e-12)


def test_a_chunk_is_left_when_the_time_is_up(monkeypatch):
    """The chunk after the third never ends; what the first three left is returned."""
    clock, waits, wait = Clock(monkeypatch), [], drivers._wait

    def endless(found, seconds):
        waits.append(seconds)
        if len(waits) == 4:
            clock.jump()
            raise drivers.OutOfTime
        wait(found, seconds)

    monkeypatch.setattr(drivers, "_wait", endless)
    options = {**QUICK, "execution": "compiled", "tolerance": 1e-300}
    result = warned(
        lambda: curvi.fit(skewed, jnp.full(2, -40.0), num_starts=1, **options),
        curvi.NotConvergedWarning,
        "budget of steps or time ran out",
    )
    assert len(waits) == 4
    assert all(0 < seconds <= HOUR for seconds in waits)
    assert 3 <= result.steps <= 7  # of 1, 2 and 4 steps at most
    assert {len(column) for column in result.trace.values()} == {result.steps}


def test_a_step_on_the_host_is_left_when_the_time_is_up(monkeypatch):
    """In the middle of its products: the parameters are those of the step before."""
    clock, seen, evaluate = Clock(monkeypatch), [], FlatObjective.__call__

    def late(*arguments):
        if len(seen) == 2:  # two steps are done, and the third has begun
            clock.jump()
        return evaluate(*arguments)

    monkeypatch.setattr(FlatObjective, "__call__", late)
    result = warned(
        lambda: curvi.fit(skewed, jnp.full(2, -40.0), on_step=seen.append, num_starts=1, **QUICK),
        curvi.NotConvergedWarning,
        "budget of steps or time ran out",
    )
    assert len(seen) == result.steps == 2


def test_waiting_for_a_chunk_ends_with_the_time():
    class Pending:
        def is_ready(self):
            return False

    with pytest.raises(drivers.OutOfTime):
        drivers._wait(Pending(), 1e-3)


@pytest.mark.parametrize(
    "options", [{"time_budget": 1e-6}, {"max_steps": 1, "num_starts": 3}], ids=["time", "starts"]
)
def test_what_a_fit_that_ended_early_says_costs_no_replicates(options, monkeypatch):
    calls = counted(monkeypatch, "curvi.diagnostics._result.replicates")
    fit = lambda: curvi.fit(skewed, jnp.full(2, -40.0), **{**QUICK, **options})  # noqa: E731
    result = warned(fit, curvi.NotConvergedWarning, "ran out")
    assert result.warnings == ()  # neither more draws nor other optima are the answer
    assert "reading mc_error computes it" in " ".join(result.summary().split())
    assert not calls
    assert result.mc_error is None or result.mc_error >= 0
    assert len(calls) == 1


def simulated_until(clock, last):
    """A simulator after whose call with this number the time is up."""
    calls = []

    def simulating(key):
        calls.append(None)
        if len(calls) == last:
            clock.jump()
        return simulate(key)

    return simulating


def test_a_calibration_that_runs_out_of_time_is_by_the_simulations_that_are_done(monkeypatch):
    options = {**QUICK, "num_simulations": 12}
    first = simulated_until(Clock(monkeypatch), 12)
    found = warned(
        lambda: curvi.calibrate(first, build, **options),
        curvi.NotConvergedWarning,
        "time_budget ran out after 11 of 12 simulations",
    )
    assert len(found.probabilities) == 11
    assert found.failures == 0
    whole = curvi.calibrate(simulate, build, **options)
    np.testing.assert_array_equal(found.probabilities, whole.probabilities[:11])


def test_a_calibration_with_too_little_time_says_so(monkeypatch):
    few = simulated_until(Clock(monkeypatch), 4)
    with pytest.raises(curvi.NumericalError, match="after 3 of 20 simulations: too few"):
        curvi.calibrate(few, build, num_simulations=20, **QUICK)


def test_the_mode_of_laplace_is_found_in_time_or_refused(monkeypatch):
    clock, seen = Clock(monkeypatch), []

    def late(info):
        seen.append(info)
        clock.jump()

    options = {"progress": False, "on_step": late, "execution": "eager"}
    start = jnp.full(2, -40.0)
    with pytest.raises(curvi.NumericalError, match="time_budget ran out"):
        curvi.laplace(skewed, start, time_budget=HOUR, **options)
    assert len(seen) == 1
    assert curvi.laplace(skewed, start, **options).steps > 1
