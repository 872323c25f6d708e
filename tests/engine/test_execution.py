"""Eager and compiled runs are the same algorithm, and end in the same place."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core.errors import InputError
from curvi.engine import Budget, Execution, ObjectiveProblem, Resources, run, run_starts
from curvi.inference import _growth as growth
from curvi.inference import _initial as initial
from tests.solvers.problems import WIDTH, generator, logistic, seed_of, variational

pytestmark = [
    pytest.mark.float64_only,
    pytest.mark.filterwarnings("ignore::curvi.MisfitWarning"),
]


def test_eager_and_compiled_runs_agree(key, dtype):
    target = logistic(generator(key), dtype)
    one, other = (
        curvi.fit(target, family=curvi.FullRank(), execution=mode, progress=False)
        for mode in ("eager", "compiled")
    )
    assert one.converged
    assert other.converged
    sd = np.asarray(one.sd)
    np.testing.assert_allclose(one.mean / sd, np.asarray(other.mean) / sd, atol=1e-4)
    np.testing.assert_allclose(sd, other.sd, rtol=1e-4)
    assert one.elbo == pytest.approx(other.elbo, abs=1e-4)
    assert one.steps == other.steps
    assert set(one.trace) == set(other.trace)
    assert one.mc_error == pytest.approx(other.mc_error, rel=0.02)
    first, second = (np.asarray(r.covariance(linear_response=True)) for r in (one, other))
    np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-6)


@pytest.mark.filterwarnings("ignore::curvi.NotConvergedWarning")
@pytest.mark.parametrize("method", [curvi.LBFGS(), curvi.HFSGVI()], ids=lambda m: type(m).__name__)
def test_any_method_can_step_eagerly_to_the_same_parameters(method, key, dtype):
    target = logistic(generator(key), dtype)
    options = {"method": method, "max_steps": 12, "seed": seed_of(key), "on_failure": "return"}
    one, other = (
        curvi.fit(target, family=curvi.MeanField(), execution=mode, num_starts=1, **options)
        for mode in ("eager", "compiled")
    )
    assert one.steps == other.steps
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_runs_from_several_starts_end_as_they_do_alone(mode, key, dtype):
    target, family = logistic(generator(key), dtype), curvi.MeanField()
    problem, resources, start = variational(target, family, curvi.Draws("whitened", 8), key)
    starts = [start, family.init(jnp.ones(WIDTH, dtype), 0.1)]
    together, alone = (
        [
            ended
            for group in groups
            for ended in run_starts(
                problem, curvi.TrustRegion(), group, resources, Budget(1e-8, 50),
                execution=Execution(mode),
            )
        ]
        for groups in ([starts], [[one] for one in starts])
    )  # fmt: skip
    for one, other in zip(together, alone, strict=True):
        assert one.outcome is other.outcome is curvi.Outcome.CONVERGED
        assert one.steps == other.steps
        np.testing.assert_allclose(one.params.mean, other.params.mean, atol=1e-6)
        assert len(one.trace["value"]) == one.steps


def test_the_mode_is_one_of_three():
    with pytest.raises(InputError, match="execution is 'fast'; choose one of 'auto'"):
        curvi.fit(lambda z: -0.5 * jnp.sum(z**2), jnp.zeros(2), execution="fast")


def correlated(position):
    return -0.5 * jnp.sum((jnp.asarray([[1.0, 0.99], [0.0, 0.1]]) @ position) ** 2 * 50)


def test_other_starts_are_tried_only_where_q_does_not_match_the_target(monkeypatch, dtype):
    made = []
    points = initial.starting_points
    monkeypatch.setattr(initial, "starting_points", lambda *a: made.append(None) or points(*a))
    start = jnp.zeros(2, dtype)
    options = {"progress": False, "family": curvi.MeanField()}
    curvi.fit(lambda z: -0.5 * jnp.sum(z**2), start, **options)
    assert not made
    curvi.fit(correlated, start, num_starts=1, **options)
    assert not made
    curvi.fit(correlated, start, max_steps=500, time_budget=1000.0, **options)
    assert made


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize(
    "method", [curvi.TrustRegion(), curvi.LBFGS()], ids=lambda m: type(m).__name__
)
def test_a_callback_sees_every_step_once(mode, method, key, dtype):
    target, seen = logistic(generator(key), dtype), []
    result = curvi.fit(
        target, method=method, num_draws=16, execution=mode, num_starts=1, on_step=seen.append
    )
    assert [info.step for info in seen] == list(range(result.steps))
    np.testing.assert_array_equal([info.value for info in seen], result.trace["elbo"])
    assert {info.run for info in seen} == {0}


def interrupt_after(monkeypatch, mode, calls):
    """Ctrl-C in place of the chunk after so many of them."""
    name = {"eager": "EagerDriver", "compiled": "CompiledDriver"}[mode]
    driver = getattr(__import__("curvi.engine._drivers", fromlist=[name]), name)
    advance, count = driver.advance, []

    def interrupted(self, *arguments):
        count.append(None)
        if len(count) == calls + 1:
            raise KeyboardInterrupt
        return advance(self, *arguments)

    monkeypatch.setattr(driver, "advance", interrupted)
    return count


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("num_starts", [1, 3])
def test_an_interrupted_run_keeps_its_last_state(mode, num_starts, monkeypatch, key, dtype):
    target = logistic(generator(key), dtype)
    interrupt_after(monkeypatch, mode, 2)
    options = {"execution": mode, "num_starts": num_starts, "tolerance": 1e-300, "num_draws": 16}
    words = "INTERRUPTED" if num_starts == 1 else "INTERRUPTED: Interrupted among 3 starts"
    with pytest.warns(curvi.NotConvergedWarning, match=words):
        result = curvi.fit(target, **options)
    assert result.outcome is curvi.Outcome.INTERRUPTED
    assert result.interrupted
    assert result.steps in ((2, 3) if mode == "compiled" else (2,))  # by the clock, 1 or 2 a chunk
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize(
    ("check", "converged", "words"),
    [
        ("descend_from_saddle", False, "was reached and is returned"),
        ("replicates", True, "its Monte-Carlo error was known, which is missing"),
    ],
)
def test_an_interruption_of_the_checks_keeps_the_fit(
    mode, check, converged, words, monkeypatch, key, dtype
):
    """Of the search for a way down from a saddle, and of the replicates; no step follows it."""
    target = logistic(generator(key), dtype)
    whole = curvi.fit(target, family=curvi.MeanField(), execution=mode, num_starts=1)
    checked, counts = getattr(growth, check), []

    def interrupted(*arguments, **options):
        counts.append(interrupt_after(monkeypatch, mode, 1))
        return checked(*arguments, **options)

    monkeypatch.setattr(growth, check, interrupted)
    with pytest.warns(curvi.NotConvergedWarning, match=f"INTERRUPTED.*{words}"):
        result = curvi.fit(target, family=curvi.MeanField(), execution=mode, num_starts=1)
    assert result.interrupted
    assert result.converged is converged
    np.testing.assert_array_equal(result.mean, whole.mean)
    assert [len(count) for count in counts] == [2]
    monkeypatch.undo()
    assert result.mc_error == whole.mc_error  # what is missing is computed when it is read


@pytest.mark.parametrize(
    "place",
    [
        "curvi.engine._loop.make_driver",
        "curvi.diagnostics._monte_carlo.draws_of",
        "curvi.inference._initial.evaluate",
        "curvi.inference._fit.evaluate_all",
    ],
)
def test_ctrl_c_between_runs_keeps_the_fit(place, monkeypatch, key, dtype):
    """Where nothing steps: a driver is made, draws are made, the bound is evaluated."""
    target = logistic(generator(key), dtype)
    whole = curvi.fit(target, family=curvi.MeanField())
    module, _, name = place.rpartition(".")
    made = getattr(importlib.import_module(module), name)
    calls = []

    def interrupted(*arguments, **options):
        calls.append(None)
        if len(calls) == (2 if name == "make_driver" else 1):
            raise KeyboardInterrupt
        return made(*arguments, **options)

    monkeypatch.setattr(place, interrupted)
    with pytest.warns(curvi.NotConvergedWarning, match="INTERRUPTED: Interrupted"):
        result = curvi.fit(target, family=curvi.MeanField())
    assert result.outcome is curvi.Outcome.INTERRUPTED
    np.testing.assert_array_equal(result.mean, whole.mean)
    assert result.summary().startswith("NOT CONVERGED")


def test_a_hook_cannot_turn_a_failure_into_convergence(key, dtype):
    class Satisfied:
        def next_call(self, step):
            return None

        def __call__(self, progress):
            return curvi.Outcome.CONVERGED if progress.ended else None

    problem = ObjectiveProblem(lambda p, rows, key: jnp.sum(p) * jnp.nan, None, fixed_key=True)
    resources = Resources(key, None, None)
    for mode in ("eager", "compiled"):
        ended = run(
            problem, curvi.LBFGS(), jnp.ones(2, dtype), resources,
            Budget(1e-8, 100, hooks=(Satisfied(),)), execution=Execution(mode),
        )  # fmt: skip
        assert ended.outcome is curvi.Outcome.NON_FINITE


@pytest.mark.filterwarnings("ignore::curvi.NotConvergedWarning")
def test_the_steps_of_other_starts_count_against_the_budget(dtype):
    seen = []
    options = {"max_steps": 14, "on_failure": "return", "on_step": seen.append}
    curvi.fit(correlated, jnp.zeros(2, dtype), **options)
    assert len(seen) <= 14 + 1
    runs = [info.run for info in seen]
    assert runs == sorted(runs)
    assert len({(info.run, info.step) for info in seen}) == len(seen)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_ctrl_c_in_a_callback_of_the_last_step_ends_the_fit(mode, key, dtype):
    target = logistic(generator(key), dtype)
    whole = curvi.fit(target, family=curvi.MeanField(), execution=mode, num_starts=1)
    seen = []

    def interrupt(info):
        seen.append(info)
        if info.run == 0 and info.step == whole.steps - 1:
            raise KeyboardInterrupt

    with pytest.warns(curvi.NotConvergedWarning, match="INTERRUPTED"):
        result = curvi.fit(
            target, family=curvi.MeanField(), execution=mode, num_starts=1, on_step=interrupt
        )
    assert result.outcome is curvi.Outcome.INTERRUPTED
    assert len(seen) == whole.steps
