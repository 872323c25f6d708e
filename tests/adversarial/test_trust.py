"""Numbers that look like an answer and are decided by a few draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import curvi
from tests.adversarial.outcomes import handled, warned


def normal(sd):
    return lambda z: -0.5 * jnp.sum(z**2) / sd**2


def constrained(density, constrain, size=1):
    target = curvi.Target(density, jnp.zeros(size), constrain=constrain)
    return curvi.fit(target, progress=False, execution="eager")


DOUBTFUL = {
    "a wide lognormal": (normal(3.0), jnp.exp, 1),
    "a reciprocal": (normal(1.0), lambda z: 1 / z, 1),
    "a tangent": (normal(1.0), jnp.tan, 1),
    "the exponential of a square": (normal(1.0), lambda z: jnp.exp(z**2), 1),
    "a double exponential": (normal(1.0), lambda z: jnp.exp(jnp.exp(z)), 1),
    "a ratio": (normal(1.0), lambda z: z[:1] / z[1:], 2),
}
SOUND = {
    "lognormals": (normal(1.2), jnp.exp, 8),
    "a softplus": (normal(3.0), jax.nn.softplus, 1),
    "probabilities": (normal(3.0), jax.nn.sigmoid, 8),
    "a Gamma scale": (lambda u: jnp.sum(2 * u - jnp.exp(u)), jnp.exp, 1),
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_moments_that_few_draws_decide_are_doubted(name):
    result = warned(
        lambda: constrained(*DOUBTFUL[name]),
        curvi.MisfitWarning,
        "mean and sd of x[0] cannot be trusted",
        "Pareto k",
        "quantiles",
    )
    assert any("cannot be trusted" in sentence for sentence in result.warnings)


@pytest.mark.parametrize("name", SOUND)
def test_ordinary_moments_are_not_doubted(name):
    handled(lambda: constrained(*SOUND[name]), lambda result: not result.warnings)


def test_a_laplace_approximation_doubts_its_moments_too():
    target = curvi.Target(normal(3.0), jnp.zeros(1), constrain=jnp.exp)
    warned(lambda: curvi.laplace(target).sd, curvi.MisfitWarning, "cannot be trusted")


def test_an_output_that_overflows_where_the_target_has_mass_has_no_mean():
    result = warned(
        lambda: constrained(normal(1.0), lambda z: jnp.exp(jnp.exp(z))), curvi.MisfitWarning
    )
    assert any("Under the target x[0] has no mean" in sentence for sentence in result.warnings)


@pytest.mark.parametrize("bottom", [-1e30, -1e4])
def test_a_cliff_that_only_fresh_draws_reach_is_named(bottom):
    result = warned(
        lambda: curvi.fit(
            lambda m: jnp.where(m > 0, 2 * jnp.log(m) - m, bottom),
            jnp.ones(()),
            family=curvi.MeanField(),
            progress=False,
        ),
        curvi.MisfitWarning,
        "bound on fresh draws",
        "cliff",
        "transform",
    )
    assert any("cliff" in sentence for sentence in result.warnings)


WITHOUT_CLIFF = {
    "mean field": {"family": curvi.MeanField()},
    "full rank": {"family": curvi.FullRank()},
}


@pytest.mark.parametrize("name", WITHOUT_CLIFF)
def test_an_ordinary_fit_has_no_cliff(name):
    design = jnp.linspace(-1, 1, 40).reshape(10, 4) ** 3

    def density(x):
        return jnp.sum(jax.nn.log_sigmoid(design @ x)) - 0.5 * jnp.sum(x**2)

    handled(
        lambda: curvi.fit(density, jnp.zeros(4), progress=False, **WITHOUT_CLIFF[name]),
        lambda result: "cliff" not in " ".join(result.warnings),
    )
