"""Answers that look right and are not: each carries a warning, or there is none at all."""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi.inference import _fit as inference
from curvi.paper.concentration import network_lipschitz, reconstruction_lipschitz
from tests.adversarial.outcomes import handled, refused, warned
from tests.solvers.problems import seed_of

HILLS = {
    "a maximum": (lambda p, batch, key: jnp.cos(p), jnp.zeros(()), -1.0),
    "a saddle": (
        lambda p, batch, key: p[0] ** 2 - p[1] ** 2 + p[1] ** 4,
        jnp.array([1.0, 0.0]),
        -0.25,
    ),
    "saddles on the way": (
        lambda p, batch, key: jnp.sum(0.25 * p**4 - 0.5 * p**2),
        jnp.zeros(3),
        -0.75,
    ),
    "a saddle between small valleys": (
        lambda p, batch, key: 1e4 * (p**4 - 1e-2 * p**2),
        jnp.zeros(()),
        -0.25,
    ),
}


@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, curvi.TrustRegion()) for name in HILLS), ("a saddle", curvi.LBFGS())],
)
def test_minimise_goes_down_from_a_stationary_point_that_is_no_minimum(name, method, key):
    fn, start, least = HILLS[name]
    found = handled(
        lambda: curvi.minimise(
            fn, start, method=method, fixed_key=True, seed=seed_of(key), execution="eager"
        ),
        lambda result: result.converged,
    )
    value = float(fn(found.params, None, None))
    np.testing.assert_allclose(value, least, atol=1e-5)
    assert np.all(np.diff(found.trace["step"]) == 1)


def test_minimise_stays_at_a_minimum_that_is_flat():
    found = curvi.minimise(lambda p, b, k: p[0] ** 2 + 0 * p[1], jnp.ones(2), fixed_key=True)
    assert found.converged
    np.testing.assert_allclose(found.params, [0, 1], atol=1e-6)


def normal(position):
    return -0.5 * jnp.sum(position**2)


NOT_FINITE = {
    "nan on one side": lambda x: {"half": jnp.log(x[0]), "other": x[1]},
    "nan everywhere": lambda x: {"half": x[0] * jnp.nan, "other": x[1]},
    "infinite at zero": lambda x: {"half": 1 / jnp.maximum(x[0], 0.0), "other": x[1]},
    "an overflow": lambda x: {"half": jnp.exp(1000 * x[0]), "other": x[1]},
}


@pytest.mark.parametrize("name", NOT_FINITE)
def test_an_answer_that_is_not_finite_is_warned_about_by_name(name):
    target = curvi.Target(normal, jnp.zeros(2), constrain=NOT_FINITE[name])
    result = warned(
        lambda: curvi.fit(target, execution="eager"), curvi.MisfitWarning, "not finite", "half"
    )
    assert "other" not in result.warnings[0]
    assert len(result.warnings) == 1


def test_laplace_warns_of_an_answer_that_is_not_finite():
    target = curvi.Target(normal, jnp.zeros(2), constrain=NOT_FINITE["nan on one side"])
    found = curvi.laplace(target)
    warned(lambda: found.mean, curvi.MisfitWarning, "not finite", "half")


def test_a_fit_without_a_stopping_rule_warns_of_an_answer_that_is_not_finite():
    target = curvi.Target(normal, jnp.zeros(2), constrain=jnp.log)
    warned(
        lambda: curvi.fit(target, method=curvi.DSVI(), max_steps=5),
        curvi.MisfitWarning,
        "not finite",
    )


def valleys(position):
    """Two modes in b at +-1, the one at 1 twice as heavy; a is one mode."""
    left, right = -50 * (position["b"] + 1) ** 2, -50 * (position["b"] - 1) ** 2
    return jnp.logaddexp(left, right + jnp.log(2.0)) - 0.5 * position["a"] ** 2


def test_starts_that_end_in_different_modes_are_warned_about_with_their_weights(key):
    start = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    # A start ends in either mode with probability 1/3 or more: 40 of them miss neither.
    result = warned(
        lambda: curvi.fit(valleys, start, num_starts=40, num_draws=64, seed=seed_of(key)),
        curvi.MisfitWarning,
        "different optima",
        "b = ",
    )
    first, second, *_ = result.modes
    assert first.elbo >= second.elbo
    assert sum(mode.num_starts for mode in result.modes) <= 40
    assert sum(mode.weight for mode in result.modes) == pytest.approx(1)
    assert set(first.position) == {"a", "b"}
    np.testing.assert_allclose([first.position["b"], second.position["b"]], [1, -1], atol=0.1)
    assert first.weight / second.weight == pytest.approx(2, rel=0.1)
    assert any("different optima" in sentence for sentence in result.warnings)


@pytest.mark.parametrize("family", [curvi.MeanField(), curvi.LowRank(1)], ids=str)
def test_starts_that_end_in_one_optimum_are_one_mode(family, key):
    """Of LowRank too, where a factor and its negative are the same q."""
    result = handled(
        lambda: curvi.fit(normal, jnp.zeros(3), family=family, num_starts=4, seed=seed_of(key)),
        lambda result: len(result.modes) == 1,
    )
    assert result.modes[0].num_starts == 4


def half_cauchy(u):
    return u - jnp.log1p(jnp.exp(2 * u))


def student(df):
    return lambda x: -0.5 * (df + 1) * jnp.log1p(x**2 / df)


def inverse_gamma(shape):
    return lambda u: -shape * u - jnp.exp(-u)


TAILS = {
    "half-Cauchy": (half_cauchy, jnp.exp, "mean"),
    "Cauchy": (student(1.0), None, "mean"),
    "Student t with two degrees of freedom": (student(2.0), None, "sd"),
    "Student t with 2.5": (student(2.5), None, 5.0**0.5),
    "Student t with four": (student(4.0), None, None),
    "inverse gamma of shape one": (inverse_gamma(1.0), jnp.exp, "mean"),
    "inverse gamma of shape 1.5": (inverse_gamma(1.5), jnp.exp, "sd"),
    "inverse gamma of shape 2.5": (inverse_gamma(2.5), jnp.exp, 0.5**-0.5 / 1.5),
    "inverse gamma of shape 4": (inverse_gamma(4.0), jnp.exp, None),
    "gamma": (lambda u: 2 * u - jnp.exp(u), jnp.exp, None),
    "lognormal": (lambda u: -0.5 * u**2, jnp.exp, None),
    "uniform": (lambda x: jnp.where(jnp.abs(x) < 1, 0.0, -jnp.inf) - 10 * x**2, None, None),
}


SHORT = ("half-Cauchy", "Student t with two degrees of freedom", "inverse gamma of shape 2.5")
TOO_SMALL = "is probably too small"


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in SHORT else pytest.mark.slow) for n in TAILS],
)
def test_moments_that_the_target_does_not_have_are_warned_about(name, key):
    """Means and sds of q are finite in every case."""
    density, constrain, missing = TAILS[name]
    target = curvi.Target(density, jnp.zeros(()), constrain=constrain)

    def run():
        return curvi.fit(target, mc_tolerance=None, num_starts=1, seed=seed_of(key))

    if missing is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", curvi.MisfitWarning)
            result = run()
        said = " ".join(result.warnings)
        assert "Under the target" not in said
        assert TOO_SMALL not in said
    elif isinstance(missing, float):  # an sd that is there, and that no draws have
        result = run()
        assert 0.8 * missing < float(result.sd) < 1.25 * missing  # five of its errors
        assert "the sd of x continues them" in " ".join(result.summary().split())
    else:
        warned(run, curvi.MisfitWarning, f"Under the target x has no {missing}")


@pytest.mark.parametrize("df", [2.5, 5.0])
def test_tails_of_all_coordinates_together_are_seen(df, key):
    """Given the others, a coordinate of a multivariate Student t has light tails."""

    def density(x):
        return -0.5 * (df + 5) * jnp.log1p(jnp.sum(x**2) / df)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", curvi.MisfitWarning)
        result = curvi.fit(density, jnp.zeros(5), progress=False, seed=seed_of(key))
    np.testing.assert_allclose(result.sd, (df / (df - 2)) ** 0.5, rtol=0.25)
    assert ("continues them" in " ".join(result.summary().split())) == (df == 2.5)


def test_a_q_alone_has_no_share_of_a_heavy_tail():
    warned(
        lambda: curvi.fit(lambda x: student(2.5)(x[0]), jnp.zeros(1), family=curvi.FullRank()),
        curvi.MisfitWarning,
        f"The sd of x[0] {TOO_SMALL}",
    )


def test_a_heavy_prior_is_no_heavy_posterior_where_data_decide(key):
    """Six rows of sd 0.3: the prior decides nothing but a tail that has no mass."""

    def density(x):
        return student(2.5)(x[0]) + student(2.5)(x[1]) - 0.5 * jnp.sum((x - 1.0) ** 2) * 6 / 0.09

    result = curvi.fit(density, jnp.zeros(2), progress=False, seed=seed_of(key))
    assert result.warnings == ()


def test_an_exact_fit_shows_in_its_summary_that_a_function_has_no_mean():
    """exp(u^2 / 2) of a normal u: q is exact, so that only the tail can tell."""
    target = curvi.Target(normal, jnp.zeros(()), constrain=lambda u: jnp.exp(0.5 * u**2))
    result = warned(
        lambda: curvi.fit(target, family=curvi.MeanField()),
        curvi.MisfitWarning,
        "x cannot be trusted",
    )
    assert "Under the target x has no mean" in " ".join(result.warnings)


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"], []], ids=len)
def test_names_that_do_not_fit_the_parameters_are_refused(names):
    result = curvi.fit(normal, jnp.zeros(2))
    refused(lambda: result.summary(names), curvi.InputError, "2 parameters", "x[0] to x[1]")
    refused(lambda: result.plot(names), curvi.InputError, "2 parameters")


STEPS = {
    "argmax": jnp.argmax,
    "a comparison": lambda x: jnp.where(x > 0, 1.0, 0.0),
    "rounding": lambda x: {"sum": jnp.sum(x), "floor": jnp.floor(3 * x[0])},
}


@pytest.mark.parametrize("name", STEPS)
def test_linear_response_refuses_a_function_that_moves_in_steps(name):
    result = curvi.fit(normal, jnp.zeros(2))
    refused(
        lambda: result.linear_response(STEPS[name]),
        curvi.NumericalError,
        "moves in steps",
        "sample()",
    )


def test_linear_response_of_a_constant_is_zero_and_of_a_discrete_site_unknown():
    constant = curvi.fit(normal, jnp.zeros(2)).linear_response(lambda x: 0 * x[0] + 1.0)
    assert float(constant) == 0
    target = curvi.Target(normal, jnp.zeros(2), constrain=lambda x: {"x": x, "up": x[0] > 0})
    found = curvi.fit(target).linear_response()
    np.testing.assert_allclose(found["x"], 1, rtol=1e-6)
    assert np.isnan(found["up"])


@pytest.mark.parametrize("fn", [jnp.log, lambda x: jnp.sqrt(x[0]), lambda x: 1 / (x - x)])
def test_linear_response_refuses_a_function_that_is_not_finite_at_draws(fn):
    result = curvi.fit(normal, jnp.zeros(2))
    refused(lambda: result.linear_response(fn), curvi.NumericalError, "function is finite")


def simulated(key):
    return jnp.zeros(()), jnp.ones(())


def built(data):
    return curvi.Target(lambda x: -0.5 * (x - data) ** 2, jnp.zeros(()))


CALIBRATIONS = {
    "a simulator that is a number": ((3, built), ("simulate is a int", "not callable")),
    "a builder that is a list": ((simulated, []), ("build is a list", "not callable")),
    "a truth that is nan": (
        (lambda key: ({"z": jnp.array([0.0, jnp.nan])}, 0), built),
        ("truth['z'][1] is nan", "simulate must return finite"),
    ),
    "an infinite truth": ((lambda key: (jnp.inf, 0), built), ("truth is inf",)),
    "a q that is nan in the user's space": (
        (simulated, lambda data: curvi.Target(normal, jnp.zeros(()), constrain=jnp.log)),
        ("is nan", "constrain must be finite"),
    ),
    "no data": ((lambda key: jnp.zeros(3), built), ("(parameters, data)",)),
    "a builder that returns a function": (
        (simulated, lambda data: normal),
        ("build returned a function", "curvi.Target"),
    ),
}


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_calibrate_refuses_what_it_cannot_judge(name):
    functions, words = CALIBRATIONS[name]
    refused(lambda: curvi.calibrate(*functions), curvi.InputError, *words)


def test_names_that_collide_in_arviz_are_refused():
    pytest.importorskip("arviz")
    start = {"a": {"b": jnp.zeros(())}, "a.b": jnp.zeros(())}
    result = curvi.fit(lambda x: -0.5 * (x["a"]["b"] ** 2 + x["a.b"] ** 2), start)
    refused(lambda: result.to_arviz(10), curvi.InputError, "both called a.b", "rename")


KEYS = {
    "in a position": lambda: curvi.Target(
        lambda x: -(x["a"] ** 2), {"a": jnp.zeros(()), 1: jnp.zeros(())}
    ),
    "in data": lambda: curvi.DataTarget(
        lambda x, rows: -((rows["a"] - x) ** 2),
        {"a": jnp.zeros(3), 1: jnp.zeros(3)},
        lambda x: -(x**2),
        jnp.zeros(()),
    ),
    "in params": lambda: curvi.minimise(
        lambda p, batch, key: p["a"] ** 2, {"a": jnp.zeros(()), 1: jnp.zeros(())}
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_mixed_types_are_refused(name):
    refused(KEYS[name], curvi.InputError, "keys of a dict the same type")


CHAINS = {
    "a hidden layer": lambda: network_lipschitz([np.ones((3, 2)), np.ones((2, 5))], np.ones(2)),
    "transposed weights": lambda: network_lipschitz(
        [np.ones((3, 2)), np.ones((3, 4)), np.ones((1, 4))], np.ones(2)
    ),
    "of a decoder": lambda: reconstruction_lipschitz(
        [np.ones((3, 2)), np.ones((4, 2))], np.ones((5, 4)), scale=np.ones(2)
    ),
    "a decoder of other images": lambda: reconstruction_lipschitz(
        [np.ones((3, 2)), np.ones((4, 3))], np.ones((5, 6)), scale=np.ones(2)
    ),
    "no layers": lambda: reconstruction_lipschitz([], np.ones((5, 4)), scale=np.ones(2)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_layers_that_do_not_fit_together_have_no_lipschitz_constant(name):
    refused(CHAINS[name], curvi.InputError, "layer")


def banana(z):
    return -0.5 * z[0] ** 2 - 50.0 * (z[-1] - z[0] ** 2) ** 2


@pytest.mark.float64_only
@pytest.mark.parametrize(
    ("size", "family", "richer"),
    [(2, curvi.MeanField(), True), (2, curvi.FullRank(), False), (1, curvi.MeanField(), False)],
)
def test_a_misfit_is_not_answered_with_what_was_done(size, family, richer):
    result = warned(
        lambda: curvi.fit(
            banana, jnp.full(size, 0.5), family=family, num_starts=1, execution="eager"
        ),
        curvi.MisfitWarning,
        "q does not match",
    )
    assert any("FullRank()" in sentence for sentence in result.warnings) is richer


@pytest.mark.float64_only
@pytest.mark.parametrize(
    ("method", "advice"),
    [
        (curvi.TrustRegion(), "Try larger batches"),
        (curvi.LBFGS(), r"Try method=TrustRegion\(\), larger batches"),
    ],
)
def test_a_divergence_is_not_answered_with_what_was_done(method, advice, monkeypatch):
    def fallen(*arguments):
        found, before = evaluate_all(*arguments)
        return found, before._replace(elbo=1e3)

    evaluate_all = inference.evaluate_all
    monkeypatch.setattr(inference, "evaluate_all", fallen)
    with pytest.raises(curvi.NumericalError, match=advice):
        curvi.fit(normal_density, jnp.ones(2), method=method, num_starts=1, execution="eager")


def normal_density(z):
    return -0.5 * jnp.sum(z**2)
