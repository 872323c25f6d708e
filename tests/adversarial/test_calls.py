"""Seeds that are none, fits inside a transformation of JAX, and exceptions out of a process."""

from __future__ import annotations

import importlib
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core import validation
from curvi._core.errors import InputError
from tests.adversarial.outcomes import refused
from tests.adversarial.test_interrupts import build, likelihood, prior, simulate, table
from tests.copies import pickled, through_joblib

pytestmark = pytest.mark.float64_only
QUICK = {"execution": "eager", "progress": False}
SEEDS = (2**70, 2**64, -1, 1.5, "a", None, True, np.float64(1.0), [0])


def square(params, batch, key):
    return jnp.sum(params**2)


@pytest.fixture(scope="module")
def fitted():
    X, y = table()
    return {
        "fit": curvi.fit(prior, jnp.zeros(2), **QUICK),
        "laplace": curvi.laplace(prior, jnp.zeros(2), execution="eager"),
        "glm": curvi.BayesianLogisticRegression().fit(X, y),
    }


ACCEPT_SEEDS = {
    "fit": lambda seed, _: curvi.fit(prior, jnp.zeros(2), seed=seed, **QUICK),
    "minimise": lambda seed, _: curvi.minimise(square, jnp.ones(2), seed=seed, **QUICK),
    "calibrate": lambda seed, _: curvi.calibrate(simulate, build, seed=seed),
    "sample of a fit": lambda seed, found: found["fit"].sample(2, seed=seed),
    "draw_report": lambda seed, found: found["fit"].draw_report(4, seed=seed),
    "to_arviz": lambda seed, found: found["fit"].to_arviz(4, seed=seed),
    "to_blackjax": lambda seed, found: found["fit"].to_blackjax(2, seed=seed),
    "sample of Laplace": lambda seed, found: found["laplace"].sample(2, seed=seed),
    "sample of coefficients": lambda seed, found: found["glm"].sample(2, seed=seed),
}


@pytest.mark.parametrize("call", ACCEPT_SEEDS.values(), ids=ACCEPT_SEEDS)
def test_a_seed_that_is_none_is_refused_wherever_one_is_taken(call, fitted):
    for seed in SEEDS:
        refused(lambda seed=seed: call(seed, fitted), InputError, "seed is", "2**64 - 1")


def test_the_high_bits_of_a_seed_count_in_either_precision():
    for x64 in (False, True):
        with jax.enable_x64(x64):
            seeds = (0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**33, 2**64 - 1, np.uint64(2**40))
            keys = [
                tuple(np.asarray(jax.random.key_data(validation.random_key(seed))).tolist())
                for seed in seeds
            ]
            assert len(set(keys)) == len(seeds)
            plain = np.asarray(jax.random.key_data(jax.random.key(2**31)))
            assert keys[2] == tuple(plain.tolist())  # small seeds are JAX's own


def test_seeds_that_differ_by_two_to_the_32_give_different_fits_without_x64():
    with jax.enable_x64(False):
        start = jnp.zeros(2, jnp.float32)
        options = {"draws": "iid", "num_draws": 8, **QUICK}
        one, other = (curvi.fit(prior, start, seed=seed, **options) for seed in (0, 2**32))
    assert not np.array_equal(one.noise, other.noise)


def closed(fit, shift):
    return fit(lambda z: -0.5 * jnp.sum((z - shift) ** 2), jnp.ones(2))


def shifted(shift):
    """An objective that closes over what is traced."""
    return lambda params, batch, key: jnp.sum((params - shift) ** 2)


def fit(*arguments):
    return curvi.fit(*arguments, **QUICK)


INSIDE = {
    "jit, position": lambda: jax.jit(lambda z: fit(prior, z).mean)(jnp.ones(2)),
    "vmap, position": lambda: jax.vmap(lambda z: fit(prior, z).mean)(jnp.ones((2, 2))),
    "grad, position": lambda: jax.grad(lambda z: fit(prior, z).elbo)(jnp.ones(2)),
    "vmap, data": lambda: jax.vmap(
        lambda y: fit(curvi.DataTarget(likelihood, y, prior, jnp.zeros(2))).mean
    )(jnp.ones((2, 3, 2))),
    "jit, nothing": lambda: jax.jit(lambda a: fit(prior, np.ones(2)).mean)(1.0),
    "jit, closure": lambda: jax.jit(lambda a: closed(fit, a).mean)(1.0),
    "vmap, closure": lambda: jax.vmap(lambda a: closed(fit, a).mean)(jnp.ones(2)),
    "grad, closure": lambda: jax.grad(lambda a: closed(fit, a).mean.sum())(1.0),
    "vmap, laplace": lambda: jax.vmap(lambda a: closed(curvi.laplace, a).mean)(jnp.ones(2)),
    "grad, minimise": lambda: jax.grad(
        lambda a: curvi.minimise(shifted(a), jnp.ones(2), fixed_key=True, **QUICK).params.sum()
    )(1.0),
    "vmap, minimise": lambda: jax.vmap(
        lambda z: curvi.minimise(square, z, fixed_key=True, **QUICK).params
    )(jnp.ones((2, 2))),
}


@pytest.mark.parametrize("call", INSIDE.values(), ids=INSIDE)
def test_a_fit_inside_a_transformation_of_jax_is_refused_in_one_sentence(call):
    refused(call, InputError, "traced by JAX", "inside jit, vmap, grad or scan", "outside")


def far(z):
    return -0.5 * jnp.sum((z - 3) ** 2)


def failing(case):
    """In a worker process: fits that end in an exception, of a function of a module or a lambda."""
    kind, _, where = case.partition(", ")
    density = far if where == "module" else (lambda z: 2 * far(z))
    options = {**QUICK, "num_starts": 1}
    if kind == "failure":
        options |= {"method": curvi.DSVI(1e3), "max_steps": 60, "execution": "compiled"}
    if kind == "warning":
        options |= {"method": curvi.LBFGS(), "max_steps": 2}
    if kind == "fault":
        options |= {"on_step": fault_at_two, "tolerance": 1e-300}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curvi.fit(density, jnp.full(2, 7.0), **options)


def fault_at_two(info):
    if info.step == 1:
        raise ZeroDivisionError("of the user")


CASES = {
    "failure": (curvi.NumericalError, "result"),
    "warning": (curvi.NotConvergedWarning, "result"),
    "fault": (ZeroDivisionError, "curvi_result"),
}


@pytest.mark.parametrize("where", ["module", "lambda"])
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("carried", [pickled, through_joblib])
def test_an_exception_survives_pickle_with_its_result(kind, where, carried):
    category, attribute = CASES[kind]
    with pytest.raises(category) as caught:
        failing(f"{kind}, {where}")
    here = getattr(caught.value, attribute)
    error = carried(caught.value)
    there = getattr(error, attribute)
    assert (type(error), str(error)) == (type(caught.value), str(caught.value))
    assert isinstance(here, curvi.FitResult)
    assert isinstance(there, curvi.FitResult) == (where == "module")
    assert (there.outcome, there.message, there.steps) == (here.outcome, here.message, here.steps)
    assert there.converged is here.converged
    for name in ("mean", "sd"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name))
    if where == "module":
        np.testing.assert_array_equal(there.sample(3), here.sample(3))


def test_other_exceptions_and_warnings_survive_pickle():
    for error in (
        curvi.Interrupted("stopped early", [1]),
        curvi.MisfitWarning("q is wrong", [1]),
        curvi.NumericalError("no", [1]),
    ):
        error.add_note("seen twice")
        copied = pickled(error)
        assert (str(copied), copied.result) == (str(error), [1])
        assert copied.__notes__ == ["seen twice"]
    for category in (curvi.MemoryBudgetError, curvi.InputError):
        assert str(pickled(category("too much of it"))) == "too much of it"


@pytest.mark.slow
@pytest.mark.parametrize("case", [f"{kind}, {where}" for kind in CASES for where in ("module", "")])
def test_a_worker_process_brings_the_real_error_home(case):
    category, attribute = CASES[case.partition(",")[0]]
    worker = importlib.import_module("tests.adversarial.test_calls").failing
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        ended = pool.submit(worker, case)
        with pytest.raises(category) as caught:
            ended.result()
    assert getattr(caught.value, attribute).steps > 0
