"""What a fit gives back, against closed forms."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import curvi
from curvi._core.errors import InputError
from curvi.diagnostics import evaluate_elbo
from curvi.diagnostics._verdict import summary_table
from curvi.families import Laplace
from tests.solvers.problems import ROWS, WIDTH, gaussian, generator, linear, seed_of

PLAN = curvi.Draws("iid", 8)
DRAWS = 4000
FAMILIES = [
    curvi.MeanField(),
    curvi.FullRank(),
    curvi.LowRank(1),
    curvi.StudentT(12.0, covariance="full"),
    curvi.LocationScale(Laplace()),
]


def some_params(family, key, dtype):
    params = family.init(jnp.asarray([1.0, -2.0, 0.5], dtype), jnp.asarray([0.5, 1.0, 2.0], dtype))
    leaves, structure = jax.tree.flatten(params.scale_params)
    keys = jax.random.split(key, len(leaves))
    moved = [
        leaf + 0.3 * jax.random.normal(k, leaf.shape, dtype)
        for leaf, k in zip(leaves, keys, strict=True)
    ]
    return params._replace(scale_params=jax.tree.unflatten(structure, moved))


def result_of(target, family, params, **changes):
    """A result that no fit was needed for."""
    trace = {
        "step": np.arange(3), "seconds": np.array([0.1, 0.2, 0.3]), "elbo": np.array([-9, -2, -1.0])
    }  # fmt: skip
    entries = {
        "target": target, "family": family, "method": curvi.TrustRegion(), "params": params,
        "outcome": curvi.Outcome.CONVERGED, "message": curvi.Outcome.CONVERGED.sentence,
        "elbo": -1.25, "elbo_se": 0.0625, "trace": trace, "draws": PLAN, "steps": 3,
        "seconds": 0.5,
    }  # fmt: skip
    return curvi.FitResult(**{**entries, **changes})


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_moments_of_the_draws_are_mean_and_covariance(family, key, dtype):
    target = linear(generator(key)).target(dtype)
    result = result_of(target, family, some_params(family, key, dtype))
    covariance = np.asarray(result.covariance(), float)
    np.testing.assert_allclose(covariance, covariance.T, rtol=1e-6)
    np.testing.assert_allclose(np.diag(covariance), np.asarray(result.sd) ** 2, rtol=1e-4)

    draws = np.asarray(result.sample(DRAWS, seed=seed_of(key)), float)
    assert draws.shape == (DRAWS, WIDTH)
    assert result.sample(2).dtype == dtype
    sd = np.sqrt(np.diag(covariance))
    whitened = (draws - np.asarray(result.mean)) / sd
    assert np.abs(whitened.mean(axis=0)).max() < 6 / DRAWS**0.5
    correlation = covariance / np.outer(sd, sd)
    # The fourth moment of a Laplace variable is 6, so products vary by at most about sqrt(5).
    assert np.abs(whitened.T @ whitened / DRAWS - correlation).max() < 6 * 3 / DRAWS**0.5
    again = np.asarray(result.sample(DRAWS, seed=seed_of(key)), float)
    assert again.tobytes() == draws.tobytes()
    assert not np.array_equal(result.sample(4, seed=1), result.sample(4, seed=2))


def positive(position):
    return {"rate": jnp.exp(position)}


def test_a_constraint_is_applied_to_draws_means_and_sds(key, dtype):
    """Through exp a Gaussian becomes log-normal, whose moments are known."""
    sd = np.array([0.1, 0.3, 0.5])
    mean = np.array([0.0, 1.0, -1.0])
    plain = linear(generator(key)).target(dtype)
    target = curvi.DataTarget(
        plain.log_likelihood, plain.data, plain.log_prior, plain.position, constrain=positive
    )
    family = curvi.MeanField()
    params = family.init(jnp.asarray(mean, dtype), jnp.asarray(sd, dtype))
    result = result_of(target, family, params)
    expected_mean = np.exp(mean + sd**2 / 2)
    expected_sd = expected_mean * np.sqrt(np.expm1(sd**2))
    error = expected_sd / 4096**0.5
    assert (np.abs(result.mean["rate"] - expected_mean) < 6 * error).all()
    np.testing.assert_allclose(result.sd["rate"], expected_sd, rtol=0.15)
    assert (np.asarray(result.sample(50)["rate"]) > 0).all()
    assert "rate[2]" in result.summary()
    np.testing.assert_allclose(np.diag(result.covariance()), sd**2, rtol=1e-5)


def test_the_bound_and_its_error_are_honest(key, dtype):
    """Over twenty seeds the deviations from the closed form, in standard errors, are normal."""
    model = linear(generator(key))
    target = model.target(dtype)
    family = curvi.MeanField()
    sd = np.diag(model.precision) ** -0.5
    mean = model.mean + sd * np.array([0.5, -0.5, 0.2])
    params = family.init(jnp.asarray(mean, dtype), jnp.asarray(sd, dtype))
    shift = mean - model.mean
    divergence = 0.5 * (
        np.trace(model.precision * np.diag(sd**2))
        + shift @ model.precision @ shift
        - WIDTH
        - np.linalg.slogdet(model.precision)[1]
        - 2 * np.log(sd).sum()
    )
    exact = model.log_evidence - divergence
    scores = []
    for i in range(20):
        elbo, error = evaluate_elbo(target, family, params, jax.random.fold_in(key, i))
        scores.append((elbo - exact) / error)
    scores = np.array(scores)
    assert np.abs(scores).max() < 6
    low, high = scipy.stats.chi2.ppf([1e-8, 1 - 1e-8], len(scores))
    assert low < scores @ scores < high


def test_a_bound_that_is_not_finite_is_a_number_and_not_a_warning(dtype):
    target = curvi.Target(lambda z: jnp.sum(jnp.log(z)), jnp.ones(2, dtype))
    params = curvi.MeanField().init(target.start, 5.0)
    elbo, error = evaluate_elbo(target, curvi.MeanField(), params, jax.random.key(0))
    assert not np.isfinite(elbo)
    assert not np.isfinite(error)


def test_the_summary_puts_the_verdict_on_top_and_names_every_coordinate(dtype):
    target = curvi.Target(
        lambda p: -2 * jnp.sum(p["slopes"] ** 2) - 2 * p["intercept"] ** 2,
        {"slopes": jnp.zeros((2, 2), dtype), "intercept": jnp.zeros((), dtype)},
    )
    params = curvi.MeanField().init(target.start, 0.5)
    make = partial(result_of, target, curvi.MeanField(), params)
    lines = make().summary().splitlines()
    assert lines[0] == "converged"
    assert curvi.Outcome.CONVERGED.sentence in lines[1]
    text = "\n".join(lines)
    assert "-1.2500 (se 0.0625)" in text
    assert "8 iid draws, fixed" in text
    for name in ("intercept", "slopes[0,1]", "slopes[1,1]"):
        assert any(line.startswith(name) for line in lines)
    assert "  0.5" in lines[-1]

    failed = make(outcome=curvi.Outcome.BUDGET, message=curvi.Outcome.BUDGET.sentence).summary()
    assert failed.startswith("NOT CONVERGED\n")
    assert "raise max_steps" in failed


@pytest.mark.float64_only
def test_the_middle_of_a_long_table_is_left_out():
    names = [f"w[{i}]" for i in range(100)]
    table = summary_table(
        verdict=("converged", "Good."),
        facts={"ELBO": "1"},
        names=names,
        columns={"mean": np.arange(100.0), "sd": np.ones(100)},
    )
    assert "... 60 more ..." in table
    for name, shown in (("w[19]", True), ("w[20]", False), ("w[79]", False), ("w[80]", True)):
        assert (name in table) is shown
    assert len({len(line) for line in table.splitlines()[-20:]}) == 1


def test_the_plot_has_labelled_axes_and_can_be_saved(tmp_path, dtype):
    target = gaussian(np.eye(WIDTH), np.ones(WIDTH)).target(dtype)
    assert target.num_rows == ROWS
    result = result_of(target, curvi.MeanField(), curvi.MeanField().init(target.start))
    figure = result.plot()
    for axes in figure.axes:
        assert axes.get_xlabel()
    assert any("ELBO" in axes.get_ylabel() for axes in figure.axes)
    labels = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
    assert "x[2]" in labels
    figure.savefig(tmp_path / "fit.png")
    assert (tmp_path / "fit.png").stat().st_size > 1000


@pytest.mark.float64_only
def test_a_number_of_draws_that_is_no_count_is_refused():
    target = gaussian(np.eye(WIDTH), np.ones(WIDTH)).target(jnp.zeros(()).dtype)
    result = result_of(target, curvi.MeanField(), curvi.MeanField().init(target.start))
    with pytest.raises(InputError, match="num_draws is 0; it must be a positive integer"):
        result.sample(0)


@pytest.mark.float64_only
def test_the_draw_report_measures_what_a_gaussian_target_gives_in_closed_form():
    """``log p`` of a standard normal at z ~ N(0, 1) has the variance 1/2 per coordinate."""
    result = curvi.fit(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2), progress=False)
    report = result.draw_report(4000)
    # The slopes in a mean and a log sd are z and z^2: variances 1 and 2 in each coordinate.
    assert abs(report.value - 1.0) < 0.25
    assert abs(report.gradient - 6.0) < 1.5
    assert report.sharp == float("inf")
    assert "no upper bound" in str(report)
