"""Every response of a formula, against its posterior on a lattice and against relations."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import special

import curvi
from curvi.likelihoods import LIKELIHOODS, likelihood_of
from curvi.mixed._posterior import weighted_moments
from tests.mixed.tables import generator

pytestmark = pytest.mark.float64_only
QUICK = ("gamma", "beta-binomial", "zero-inflated-poisson")
NAMES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name, kind in LIKELIHOODS.items()
    if not kind.of_scale and not kind.conjugate
]
TRUTH = {"odds of an extra zero": 0.3, "degrees of freedom": 6.0}


def table_of(name, key, groups=10, rows=10):
    """Responses of a model with a group effect, drawn from it."""
    rng = generator(key, 5)
    likelihood = likelihood_of(name)
    g = np.repeat(np.arange(groups), rows)
    t = 0.6 + 0.7 * rng.standard_normal(groups)[g]
    n = rng.integers(3, 12, g.size).astype(float) if likelihood.takes_trials else np.ones(g.size)
    extra = np.array([TRUTH.get(e.name, 0.5) for e in likelihood.extras])
    y = np.asarray(likelihood.sample(t, n, extra, rng), float)
    left = "proportion(y, n)" if likelihood.takes_trials else "y"
    frame = pd.DataFrame({"y": y, "n": n, "g": [f"g{i}" for i in g]})
    return likelihood, frame, f"{left} ~ 1 + (1 | g)"


def moments_on_a_lattice(model, likelihood, frame, ticks=17, reach=5.5):
    """Of the intercept, group sd and extras; every group effect is integrated by quadrature."""
    posterior = model.posterior_
    scale = posterior.weights @ posterior.theta
    spread = np.sqrt(posterior.weights @ (posterior.theta - scale) ** 2)
    centre = np.concatenate([model.coef_, scale])
    width = np.concatenate([model.coef_sd_, spread])
    axis = np.linspace(-reach, reach, ticks)
    lattice = np.stack(np.meshgrid(*[axis] * len(centre), indexing="ij"), -1)
    at = centre + width * lattice.reshape(-1, len(centre))
    theta = at[:, 1:]
    total = posterior.layout.log_prior(theta) - 0.5 * (at[:, 0] / model._scales[0]) ** 2
    nodes, weights = np.polynomial.hermite_e.hermegauss(31)
    extra, sd = np.exp(theta[:, 1:])[:, None, None, :], np.exp(theta[:, :1])
    effects, wide = np.linspace(-9, 9, 181), 3.0
    for _, rows in frame.groupby("g"):
        # nodes stand around the product of the prior and the Gaussian nearest to the likelihood
        y, n = (rows[c].to_numpy(float)[:, None] for c in ("y", "n"))
        curve = likelihood.log_density(centre[0] + effects, y, n, np.exp(scale[1:])).sum(axis=0)
        weight = special.softmax(curve - 0.5 * (effects / wide) ** 2)
        mode, size = weight @ effects, np.sqrt(weight @ (effects - weight @ effects) ** 2)
        precision = size**-2.0 - wide**-2.0 + sd**-2.0
        width = 1.4 * precision**-0.5
        away = mode + centre[0] - at[:, :1]  # a predictor is the intercept and the effect
        u = away * size**-2.0 / precision + width * nodes
        logs = np.empty((len(at), len(nodes)))
        for part in np.array_split(np.arange(len(at)), 1 + len(at) // 4000):
            t = at[part, :1, None] + u[part, None]
            logs[part] = likelihood.log_density(t, y, n, extra[part]).sum(axis=1)
        logs += -0.5 * (u / sd) ** 2 - np.log(sd) + 0.5 * nodes**2 + np.log(weights * width)
        total = total + special.logsumexp(logs, axis=1)
    mass = special.softmax(total)
    values = np.column_stack([at[:, 0], np.exp(theta)])
    mean = mass @ values
    return mean, np.sqrt(mass @ (values - mean) ** 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_response_has_the_posterior_of_a_lattice(key, name):
    likelihood, frame, formula = table_of(name, key)
    model = curvi.MixedModel(formula, likelihood=name, num_points=2048).fit(frame)
    mean, sd = moments_on_a_lattice(model, likelihood, frame)
    natural = np.exp(model.posterior_.theta)
    found, spread = weighted_moments(natural, model.posterior_.weights)
    assert (np.abs(np.concatenate([model.coef_, found]) - mean) < 0.1 * sd).all()
    np.testing.assert_allclose(np.concatenate([model.coef_sd_, spread]), sd, rtol=0.1)


def test_a_lognormal_response_is_a_gaussian_one_in_logarithms(key):
    _, frame, formula = table_of("lognormal", key)
    options = {"intercept_prior_scale": 3.0, "group_sd_scale": 1.0, "noise_scale": 1.0}
    logs = frame.assign(y=np.log(frame.y))
    plain = curvi.MixedModel(formula, likelihood="gaussian", **options).fit(logs)
    other = curvi.MixedModel(formula, likelihood="lognormal", **options).fit(frame)
    assert abs(other.coef_ - plain.coef_) < 0.1 * plain.coef_sd_
    np.testing.assert_allclose(other.coef_sd_, plain.coef_sd_, rtol=0.1)
    jacobian = np.log(frame.y).sum()
    assert other.log_evidence_ == pytest.approx(plain.log_evidence_ - jacobian, abs=0.1)


@pytest.mark.parametrize("name", ["gamma", "weibull"])
def test_predictions_are_means_and_intervals_hold_the_rows(key, name):
    _, frame, formula = table_of(name, key)
    model = curvi.MixedModel(formula, likelihood=name).fit(frame)
    table = model.predict(frame, interval=0.9, kind="response")
    inside = np.mean((table.lower <= frame.y) & (frame.y <= table.upper))
    assert inside > 0.9 - 5 * np.sqrt(0.09 / len(frame))
    drawn = frame.groupby("g").y.transform("mean")
    np.testing.assert_allclose(model.predict(frame).mean(), drawn.mean(), rtol=0.25)
