"""The loop: traces, chunks, bits, interruptions and budgets."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import curvi
from curvi._core.errors import NotConvergedWarning, NumericalError
from curvi.engine import _drivers as drivers
from curvi.engine import _loop as loop
from curvi.engine._drivers import CompiledDriver
from curvi.solvers._first_order import FirstOrderState
from curvi.solvers._method import Method, make_info
from tests.compilations import num_compiled
from tests.solvers.problems import WIDTH, generator, linear, seed_of

ROOT = Path(__file__).parents[2]


def counting():
    """A new log density that counts how often JAX traces it."""
    counter = ModuleType("counter")
    counter.calls = 0

    def log_density(position):
        counter.calls += 1
        return -0.25 * jnp.sum((position - 3) ** 4)

    return log_density, counter


@pytest.mark.filterwarnings("ignore::curvi.MisfitWarning", "ignore::curvi.NotConvergedWarning")
@pytest.mark.parametrize(
    "method",
    [curvi.TrustRegion(), pytest.param(curvi.DSVI(), marks=pytest.mark.float64_only)],
    ids=lambda m: type(m).__name__,
)
def test_a_log_density_is_traced_once_whatever_the_number_of_steps(method, dtype):
    options = {"method": method, "on_failure": "return"}
    start = jnp.zeros(2, dtype)
    log_density, counter = counting()
    curvi.fit(log_density, start, max_steps=2, **options)
    assert counter.calls == 1
    result = curvi.fit(log_density, start, max_steps=50, **options)
    assert result.steps > 2
    assert counter.calls == 2
    # Another fit of the same function and shape traces it, and compiles nothing.
    before = num_compiled()
    curvi.fit(log_density, start, max_steps=60, seed=1, **options)
    assert counter.calls == 3
    assert num_compiled() == before


@pytest.mark.float64_only
def test_many_steps_need_few_chunks(monkeypatch, key, dtype):
    """Chunks double up to 500 steps while they are fast; here the clock never objects."""
    calls = []
    advance = CompiledDriver.advance

    def counted(*arguments):
        calls.append(None)
        return advance(*arguments)

    monkeypatch.setattr(CompiledDriver, "advance", counted)
    monkeypatch.setattr(loop, "_CHUNK_SECONDS", float("inf"))
    result = curvi.fit(
        linear(generator(key)).target(dtype), method=curvi.DSVI(1e-3), max_steps=2000
    )
    assert result.steps == 2000
    assert len(calls) <= 12


def fit_bits(dtype) -> bytes:
    """The bytes of a fit that uses every stream of randomness."""
    target = linear(np.random.default_rng(0)).target(dtype)
    result = curvi.fit(
        target, method=curvi.HFSGVI(), num_draws=4, batch_size=4, seed=7, max_steps=20,
        on_failure="return",
    )  # fmt: skip
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(result.params)]
    columns = [result.trace[name] for name in sorted(result.trace) if name != "seconds"]
    numbers = np.array([result.elbo, result.elbo_se])
    return b"".join(array.tobytes() for array in [*leaves, *columns, numbers])


@pytest.mark.float64_only
def test_the_same_seed_gives_the_same_bits_in_this_process_and_in_another(dtype):
    here = fit_bits(dtype)
    assert fit_bits(dtype) == here
    program = f"""
        import sys
        import jax
        jax.config.update("jax_enable_x64", {dtype == jnp.float64})
        import jax.numpy as jnp
        from tests.engine.test_loop import fit_bits
        sys.stdout.write(fit_bits(jnp.dtype("{dtype}")).hex())
    """
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    there = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert bytes.fromhex(there.stdout) == here


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_ctrl_c_returns_what_there_is(chunks, monkeypatch, key, dtype):
    advance = CompiledDriver.advance
    calls = []

    def interrupted(*arguments):
        if len(calls) >= chunks:
            raise KeyboardInterrupt
        calls.append(None)
        return advance(*arguments)

    monkeypatch.setattr(CompiledDriver, "advance", interrupted)
    target = linear(generator(key)).target(dtype)
    with pytest.warns(NotConvergedWarning, match="INTERRUPTED") as caught:
        result = curvi.fit(target, method=curvi.DSVI(1e-3), max_steps=2000, seed=seed_of(key))
    assert caught[0].message.result is result
    assert result.outcome is curvi.Outcome.INTERRUPTED
    assert not result.converged
    assert "Interrupted by the user" in result.message
    assert {len(column) for column in result.trace.values()} == {result.steps}
    assert (result.steps > 0) == (chunks > 0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
    assert "NOT CONVERGED" in result.summary()
    if chunks != 1:
        assert result.plot().axes


@pytest.mark.parametrize(
    "budget", [{"time_budget": 1e-9}, {"max_steps": 2}], ids=lambda budget: next(iter(budget))
)
def test_a_budget_that_runs_out_warns_and_says_so(budget, key, dtype):
    target = linear(generator(key)).target(dtype, start=[30.0, 30.0, 30.0])
    for on_failure in ("raise", "warn", "return"):  # it is not a failure
        with pytest.warns(NotConvergedWarning, match="budget of steps or time ran out") as caught:
            result = curvi.fit(target, method=curvi.LBFGS(), on_failure=on_failure, **budget)
        assert len(caught) == 1
        assert caught[0].message.result is result
        assert result.outcome is curvi.Outcome.BUDGET
        assert not result.converged
        assert result.steps == budget.get("max_steps", 0)


def test_divergence_raises_warns_or_returns_and_always_keeps_a_finite_state(key, dtype):
    target = linear(generator(key)).target(dtype)
    options = {"method": curvi.DSVI(learning_rate=1e3), "max_steps": 60, "seed": seed_of(key)}
    with pytest.raises(NumericalError) as caught:
        curvi.fit(target, **options)
    with pytest.warns(NotConvergedWarning) as warned:
        second = curvi.fit(target, on_failure="warn", **options)
    third = curvi.fit(target, on_failure="return", **options)
    assert str(warned[0].message) == str(caught.value) == second.message
    for result in (caught.value.result, second, third):
        assert result.outcome in (curvi.Outcome.DIVERGED, curvi.Outcome.NON_FINITE)
        assert not result.converged
        assert result.mean.shape == (WIDTH,)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))


@dataclass(frozen=True)
class Shrinking(Method):
    """Halves its parameters, and says what it does to the BLAS."""

    heavy: bool

    @property
    def decomposes(self):
        return self.heavy

    def init(self, problem, params, resources):
        return FirstOrderState(params, ())

    def step(self, problem, state, resources, step, tolerance):
        return state._replace(params=state.params / 2), make_info(jnp.sum(state.params))


@pytest.mark.float64_only
@pytest.mark.parametrize("heavy", [True, False])
def test_steps_that_decompose_matrices_run_with_one_thread_of_the_blas(heavy, monkeypatch):
    def threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    during, wait = [], drivers._wait
    monkeypatch.setattr(drivers, "_wait", lambda *a: (during.append(threads()), wait(*a)))
    with threadpool_limits(2, "blas"):
        before = threads()
        curvi.minimise(
            lambda p, batch, key: jnp.sum(p**2), jnp.ones(2), method=Shrinking(heavy), max_steps=3
        )
        assert threads() == before
    assert {n for seen in during for n in seen} == ({1} if heavy else set(before))
