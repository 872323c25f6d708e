"""Families that are conditional on globals: density, moments, and what they are exact for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import curvi
from curvi._core.compilation import cost_of
from curvi._core.errors import InputError
from curvi.families import Conditional, Params
from curvi.families._host import HostMap, has_host_map

POSITION = {"a": np.zeros(3), "b": np.zeros(3), "mu": np.zeros(()), "t": np.zeros(())}
DENSE = Conditional(("mu", "t"))
GROUPED = Conditional(("mu", "t"), (("a", "b"),))


def randomly(family, key, dtype):
    resolved = family.on(POSITION)
    flat, unravel = ravel_pytree(resolved.init(jnp.zeros(8, dtype), 0.7))
    moved = unravel(flat + 0.3 * jax.random.normal(key, flat.shape, dtype))
    return resolved, resolved.project(moved, moved)


def close(dtype):
    return {"rtol": 1e-9, "atol": 1e-9} if dtype == jnp.float64 else {"rtol": 2e-3, "atol": 2e-3}


@pytest.mark.parametrize("family", [DENSE, GROUPED], ids=["dense", "groups"])
def test_the_density_is_that_of_the_change_of_variables(family, key, dtype):
    resolved, params = randomly(family, key, dtype)
    noise = jax.random.normal(jax.random.fold_in(key, 1), (8,), dtype)
    z = resolved.transform(params, noise)
    jacobian = jax.jacobian(lambda e: resolved.transform(params, e))(noise)
    expected = jax.scipy.stats.norm.logpdf(noise).sum() - jnp.linalg.slogdet(jacobian)[1]
    np.testing.assert_allclose(resolved.log_prob(params, z), expected, **close(dtype))
    np.testing.assert_allclose(resolved.noise_log_prob(params, noise), expected, **close(dtype))
    recovered = resolved.scale.solve(params.scale_params, z - params.mean)
    np.testing.assert_allclose(recovered, noise, **close(dtype))


@pytest.mark.float64_only
@pytest.mark.parametrize("family", [DENSE, GROUPED], ids=["dense", "groups"])
def test_mean_covariance_and_entropy_do_not_depend_on_how_scales_follow_the_globals(family, key):
    resolved, params = randomly(family, key, jnp.float64)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    scale = resolved.scale
    # The locals are centred and independent given the globals: what is left is over the globals.
    pairs = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    mass = np.outer(weights, weights).ravel()
    noise = np.concatenate([pairs, np.zeros((len(pairs), 6))], axis=1)
    logs = jax.vmap(lambda e: scale.log_scales(params.scale_params, e))(jnp.asarray(noise))
    np.testing.assert_allclose(mass @ np.exp(2 * np.asarray(logs)), np.ones(6), rtol=1e-6)
    linear = scale.inner.log_det(params.scale_params["scale"])
    volume = float(linear) + mass @ np.asarray(logs).sum(axis=1)
    constant = 4 * np.log(2 * np.pi * np.e)
    np.testing.assert_allclose(resolved.entropy(params), volume + constant, rtol=1e-9)
    plain = Params(params.mean, {**params.scale_params, "warp": jnp.zeros((6, 2))})
    identity = jnp.eye(8)
    factor = jax.vmap(lambda e: resolved.transform(plain, e) - plain.mean)(identity).T
    np.testing.assert_allclose(resolved.covariance(params), factor @ factor.T, atol=1e-12)
    np.testing.assert_allclose(resolved.sd(params) ** 2, np.diag(factor @ factor.T), atol=1e-12)


@pytest.mark.parametrize("family", [DENSE, GROUPED], ids=["dense", "groups"])
@pytest.mark.slow
def test_the_metric_is_the_fisher_information_where_scales_do_not_follow_the_globals(
    family, key, dtype
):
    resolved, params = randomly(family, key, dtype)
    params = Params(params.mean, {**params.scale_params, "warp": jnp.zeros((6, 2), dtype)})
    flat, unravel = ravel_pytree(params)
    tangent = unravel(jax.random.normal(jax.random.fold_in(key, 2), flat.shape, dtype))
    tangent = resolved.project(params, tangent)
    metric = resolved.metric(params)
    back = metric.solve(metric.apply(tangent))
    for found, given in zip(jax.tree.leaves(back), jax.tree.leaves(tangent), strict=True):
        np.testing.assert_allclose(found, given, **close(dtype))
    if dtype == jnp.float64:
        draws = resolved.sample(params, jax.random.fold_in(key, 3), 20_000)
        score = jax.vmap(jax.grad(resolved.log_prob), in_axes=(None, 0))(params, draws)
        along = sum(
            jnp.sum((s * t[None]).reshape(len(draws), -1), axis=1)
            for s, t in zip(jax.tree.leaves(score), jax.tree.leaves(tangent), strict=True)
        )
        squared = ravel_pytree(metric.apply(tangent))[0] @ ravel_pytree(tangent)[0]
        # A sum of squares of a quadratic form: its relative error is below 6 sqrt(15 / 20000).
        np.testing.assert_allclose(jnp.mean(along**2), squared, rtol=0.17)


@pytest.mark.float64_only
def test_on_a_gaussian_model_with_groups_the_family_is_the_posterior(key):
    number, observed = 6, jax.random.normal(key, (6, 4), jnp.float64)

    def log_density(p):
        return (
            -0.5 * p["mu"] ** 2 / 4
            - 0.5 * jnp.sum((p["effect"] - p["mu"]) ** 2) / 0.5
            - 0.5 * jnp.sum((observed - p["effect"][:, None]) ** 2)
        )

    position = {"effect": jnp.zeros(number), "mu": jnp.zeros(())}
    family = Conditional(("mu",), (("effect",),))
    # B is found from third moments of the draws, and those of few draws are not those of a normal.
    result = curvi.fit(log_density, position, family=family, num_draws=1024, progress=False)
    flat, unravel = ravel_pytree(position)
    precision = -jax.hessian(lambda z: log_density(unravel(z)))(flat)
    slope = jax.grad(lambda z: log_density(unravel(z)))(flat)
    mean = jnp.linalg.solve(precision, slope)
    evidence = log_density(unravel(flat)) + 0.5 * slope @ mean
    evidence += 0.5 * (len(flat) * jnp.log(2 * jnp.pi) - jnp.linalg.slogdet(precision)[1])
    # The bound is the evidence where q is the posterior; the error of B is that of the draws.
    np.testing.assert_allclose(result.elbo, evidence, atol=0.02 + 5 * result.elbo_se)
    sd = jnp.sqrt(jnp.diagonal(jnp.linalg.inv(precision)))
    np.testing.assert_allclose((result.params.mean - mean) / sd, 0.0, atol=0.05)
    np.testing.assert_allclose(ravel_pytree(result.sd)[0] / sd, 1.0, atol=0.05)


@pytest.mark.float64_only
def test_memory_and_work_are_linear_in_the_number_of_groups():
    def work(number):
        position = {"effect": np.zeros((number, 2)), "mu": np.zeros(3)}
        family = Conditional(("mu",), (("effect",),)).on(position)
        params = family.init(jnp.zeros(2 * number + 3), 1.0)
        metric = cost_of(lambda p, t: family.metric(p).solve(t), params, params)
        move = cost_of(family.transform, params, jnp.zeros(2 * number + 3))
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        return np.array([metric.numbers, move.numbers, size])

    slope = np.log(work(10_000) / work(100)) / np.log(100.0)
    np.testing.assert_allclose(slope, 1.0, atol=0.06)


@pytest.mark.float64_only
def test_the_map_on_the_host_is_that_of_the_family(key):
    resolved, params = randomly(DENSE, key, jnp.float64)
    place = HostMap.of(resolved, params)
    assert has_host_map(resolved)
    assert not has_host_map(GROUPED.on(POSITION))
    noise = np.asarray(jax.random.normal(jax.random.fold_in(key, 1), (5, 8), jnp.float64))
    moved = place.forward(noise)
    expected = jax.vmap(lambda e: resolved.transform(params, e))(noise)
    np.testing.assert_allclose(moved.positions, expected, atol=1e-12)
    np.testing.assert_allclose(place.noise_of(moved.positions), noise, atol=1e-9)

    def log_p(e):
        z = resolved.transform(params, e)
        jacobian = jax.jacobian(lambda e: resolved.transform(params, e))(e)
        return jnp.sum(jnp.sin(z)) + jnp.linalg.slogdet(jacobian)[1]

    found = place.back(moved, np.cos(moved.positions))
    np.testing.assert_allclose(found, jax.vmap(jax.grad(log_p))(noise), atol=1e-9)
    again = place.params(resolved, jnp.float64)
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.float64_only
@pytest.mark.parametrize(
    ("family", "words"),
    [
        (Conditional(("nu",)), "no leaf 'nu'"),
        (Conditional((8,)), "there are 8 coordinates"),
        (Conditional(("mu", "mu")), "named twice"),
        (Conditional(("mu",), (("a", "b"),)), "t belongs to neither"),
        (Conditional(("a", "b"), (("mu",), ("t",))), "is a scalar"),
    ],
)
def test_a_structure_that_does_not_fit_the_position_is_refused(family, words):
    with pytest.raises(InputError, match=words):
        family.on(POSITION)
