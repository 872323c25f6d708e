"""The bound and its curvature."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from curvi import VAE
from curvi.engine import Resources
from curvi.likelihoods import bounded
from curvi.linalg import gauss_newton
from curvi.vae import Bernoulli, Gaussian, MLPObjective, VAEObjective, initial_params
from curvi.vae._class_objective import ClassObjective
from curvi.vae._networks import principal_rotation
from curvi.vae._objective import kl_divergence, reparameterise
from curvi.vae._training import EpochProblem, ShuffledRows, shuffling_multipliers


def generator_of(key):
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def small(key, likelihood, *, variances=0, draws=1, decay=0.0, dtype=np.float64):
    generator = generator_of(key)
    params = initial_params(
        generator, inputs=5, hidden=(4,), latent=2, variances=variances, dtype=dtype
    )
    X = jnp.asarray(generator.random((6, 5)), dtype)
    objective = MLPObjective(likelihood=likelihood, num_draws=draws, decoder_l2=decay)
    return objective, params, X


@pytest.mark.float64_only
@pytest.mark.parametrize("likelihood", [Bernoulli(), Gaussian(0.3)], ids=["binary", "real"])
def test_the_products_are_those_of_gauss_newton_with_the_exact_hessian_of_the_loss(key, likelihood):
    objective, params, X = small(key, likelihood, draws=2)

    @jax.jit  # far faster than product by product
    def both(params):
        first = objective.gauss_newton(params, X, key)
        second = gauss_newton(
            lambda p: objective.outputs(p, X, key), lambda o: objective.loss(o, X), params
        )
        return [(*parts[:2], parts[2].dense()) for parts in (first, second)]

    (value, gradient, ours), reference = both(params)
    np.testing.assert_allclose(value, reference[0], rtol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), gradient, reference[1])
    np.testing.assert_allclose(ours, reference[2], atol=1e-10)


@pytest.mark.float64_only
@pytest.mark.parametrize(
    ("likelihood", "variances"),
    [(Bernoulli(), 0), (Gaussian(0.3), 0), (Gaussian("pixel"), 5), (Gaussian("one"), 1)],
    ids=["bernoulli", "fixed", "pixel", "one"],
)
def test_the_curvature_of_a_likelihood_is_its_fisher_information(key, likelihood, variances):
    """E[score score'] over pixels drawn from p(x | z): exactly, by enumeration or moments."""
    objective, params, X = small(key, likelihood, variances=variances)
    outputs = objective.outputs(params, X, key).decoded
    weights = jax.tree.leaves(likelihood.curvature(outputs))
    if variances == 0 and isinstance(likelihood, Bernoulli):
        scores = [jax.grad(lambda o, v=v: likelihood.log_prob(o, v * jnp.ones_like(X)).sum())(
            outputs) for v in (0.0, 1.0)]  # fmt: skip
        p = likelihood.mean(outputs)
        expected = [(1 - p) * scores[0] ** 2 + p * scores[1] ** 2]
    else:  # Gauss-Hermite is exact for the polynomial scores of a Gaussian
        nodes, mass = np.polynomial.hermite_e.hermegauss(8)
        mean, log_variance = likelihood.parts(outputs)
        squares = [
            [s**2 for s in jax.tree.leaves(jax.grad(lambda o, t=t: likelihood.log_prob(
                o, mean + jnp.exp(0.5 * log_variance) * t).sum())(outputs))] for t in nodes
        ]  # fmt: skip
        expected = [
            sum(m * s[i] for m, s in zip(mass, squares, strict=True)) / mass.sum()
            for i in range(len(weights))
        ]
    for ours, theirs in zip(weights, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_the_divergence_is_zero_at_the_prior_and_the_known_value_elsewhere(dtype):
    mean, s = jnp.asarray([[0.0, 1.0]], dtype), jnp.asarray([[0.0, np.log(4.0)]], dtype)
    np.testing.assert_allclose(kl_divergence(mean, s), 0.5 * (1 + 4 - np.log(4) - 1), rtol=1e-5)
    assert float(kl_divergence(mean * 0, s * 0)[0]) == 0


def test_extreme_log_variances_and_logits_stay_finite(dtype):
    wild = jnp.asarray([-1e30, -50.0, -3.0, 0.0, 3.0, 50.0, 1e30], dtype)
    safe = bounded(wild)
    np.testing.assert_array_equal(safe[2:5], wild[2:5])
    assert bool(jnp.all(jnp.isfinite(jnp.exp(safe))))
    assert bool(jnp.all(jnp.isfinite(jax.vmap(jax.grad(bounded))(wild))))
    logits = jnp.asarray([[-1e4, 1e4]], dtype)
    assert float(Bernoulli().log_prob(logits, jnp.asarray([[0.0, 1.0]], dtype))[0]) == 0


@pytest.mark.slow
@pytest.mark.float64_only
def test_user_functions_give_the_same_objective_as_the_built_in_network(key):
    objective, params, X = small(key, Bernoulli(), decay=0.1)

    def encode(p, x):
        both = jnp.tanh(x @ p.encoder[0][:-1] + p.encoder[0][-1:]) @ p.heads[:-1] + p.heads[-1:]
        return both[:, :2], both[:, 2:]

    def decode(p, z):
        hidden = jnp.tanh(z @ p.decoder[0][:-1] + p.decoder[0][-1:])
        return hidden @ p.decoder[1][:-1] + p.decoder[1][-1:]

    theirs = VAEObjective(
        encode, decode, decoder_l2=0.1, penalised=lambda p: [layer[:-1] for layer in p.decoder]
    )
    np.testing.assert_allclose(objective(params, X, key), theirs(params, X, key), rtol=1e-12)
    dense = [
        jax.jit(lambda p, o=o: o.gauss_newton(p, X, key)[2].dense())(params)
        for o in (objective, theirs)
    ]
    np.testing.assert_allclose(dense[0], dense[1], atol=1e-12)


@pytest.mark.float64_only
def test_a_rotated_network_is_the_same_function_and_comes_back(key):
    objective, params, X = small(key, Bernoulli())
    rotation = principal_rotation(np.asarray(X), directions=5)
    rotated = rotation.rotated(params)
    white = MLPObjective(white=True)
    features = jnp.asarray(rotation.features(np.asarray(X)))
    np.testing.assert_allclose(
        objective(params, X, key), white(rotated, (features, X), key), rtol=1e-9
    )
    back = rotation.restored(rotated)
    np.testing.assert_allclose(objective(params, X, key), objective(back, X, key), rtol=1e-9)


@pytest.mark.float64_only
@pytest.mark.parametrize("num_rows", [7, 30, 101])
def test_an_epoch_visits_every_row_once(key, num_rows):
    rows = jnp.arange(num_rows)
    multipliers = jnp.asarray(shuffling_multipliers(num_rows, generator_of(key)))
    problem = EpochProblem(None, 1)
    resources = Resources(key, ShuffledRows(rows, multipliers), None)
    for epoch in (0, 3):
        steps = epoch * num_rows + np.arange(num_rows)
        visit = jax.jit(jax.vmap(lambda s: problem.sample(resources, s)[0]))
        seen = visit(jnp.asarray(steps, jnp.int32)).ravel()
        assert sorted(seen.tolist()) == list(range(num_rows))


@pytest.mark.float64_only
def test_the_bounds_of_all_classes_are_those_of_each_class(key):
    generator = generator_of(key)
    X = jnp.asarray(generator.random((6, 5)))
    objective = ClassObjective(Bernoulli(), 3, 0.1, 1.0)
    params = objective.first_params(generator, np.asarray(X), (4, 3), 2)
    noise = jax.random.normal(key, (6, 3, 2))
    every = jax.jit(objective.all_elbos)(params, X, noise)
    repeated, classes = jnp.repeat(X, 3, axis=0), jnp.tile(jnp.eye(3), (6, 1))
    each = jax.jit(objective.elbos)(params, repeated, classes, noise.reshape(18, 2))
    np.testing.assert_allclose(every, each.reshape(6, 3), rtol=1e-12)


def linear_gaussian(key):
    """Objective, rows, and parameters at which q is the posterior.

    With orthogonal loadings W and noise of variance v the precision 1 + |w_k|^2 / v is diagonal.
    """
    generator, variance = generator_of(key), 0.3
    loadings = np.linalg.qr(generator.standard_normal((5, 2)))[0] * [2.0, 0.7]
    precision = 1 + np.sum(loadings**2, axis=0) / variance
    params = {
        "encoder": jnp.asarray(loadings / (variance * precision)),
        "log_variance": jnp.asarray(-np.log(precision)),
        "decoder": jnp.asarray(loadings.T),
    }
    rows = jnp.asarray(generator.standard_normal((7, 5)))

    def encode(p, x):
        mean = x @ p["encoder"]
        return mean, jnp.broadcast_to(p["log_variance"], mean.shape)

    objective = VAEObjective(
        encode, lambda p, z: z @ p["decoder"], Gaussian(variance), num_draws=2, beta=1.0
    )
    return objective, rows, params


@pytest.mark.float64_only
def test_path_derivatives_of_the_encoder_vanish_draw_by_draw_where_q_is_the_posterior(key):
    objective, rows, params = linear_gaussian(key)
    path = jax.grad(replace(objective, path_derivative=True))(params, rows, key)
    plain = jax.grad(objective)(params, rows, key)
    for name in ("encoder", "log_variance"):
        np.testing.assert_allclose(path[name], 0.0, atol=1e-4)  # log variances are softly bounded
        assert jnp.max(jnp.abs(plain[name])) > 1e-2
    np.testing.assert_allclose(path["decoder"], plain["decoder"], rtol=1e-12)


@pytest.mark.float64_only
def test_path_derivatives_have_the_mean_of_the_gradient_and_leave_values_alone(key):
    """What is taken away is linear in the draws and their squares: two signs have both right."""
    objective, rows, params = linear_gaussian(key)
    params = jax.tree.map(lambda leaf: 1.3 * leaf + 0.1, params)  # not at the posterior
    objective = replace(objective, beta=1.7)
    path = replace(objective, path_derivative=True)
    np.testing.assert_allclose(path(params, rows, key), objective(params, rows, key), rtol=1e-12)

    def gradient(objective, noise):
        def value(params):
            mean, log_variance = objective.code(params, rows)
            decoded = objective.decoded(params, reparameterise(mean, log_variance, noise))
            seen = objective.seen(mean, log_variance, noise, decoded, rows)
            return objective.loss(seen, rows)

        return jax.grad(value)(params)

    sign = jax.random.rademacher(key, (7, 2)).astype(float)
    signs = jnp.stack([sign, -sign])
    both = gradient(path, signs), gradient(objective, signs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), *both)


@pytest.mark.float64_only
def test_products_see_how_far_the_rows_are_from_the_means(key):
    """Of a log variance: the mean over rows of the second derivative, where that is above 1/2."""
    objective, params, X = small(key, Gaussian("pixel"), variances=5)
    X = X + jnp.asarray([0.0, 0.1, 1.0, 10.0, 100.0])[None]

    def outputs_of(p):
        return objective.outputs(p, X, key)

    @jax.jit
    def both(params):
        outputs = outputs_of(params)

        def loss(log_variance):  # the sum over rows: each has a log variance of its own
            return -jnp.sum(objective.likelihood.log_prob((outputs.decoded[0], log_variance), X))

        raw = outputs.decoded[1]
        second = jax.jvp(jax.grad(loss), (raw,), (jnp.ones_like(raw),))[1]
        plain = objective.curvature(outputs)
        shown = jnp.broadcast_to(jnp.maximum(0.5, second.mean(axis=0, keepdims=True)), raw.shape)
        weights = plain._replace(decoded=(plain.decoded[0], shown))
        _, push = jax.linearize(outputs_of, params)
        pull = jax.linear_transpose(push, params)
        along = jax.tree.map(jnp.ones_like, params)
        expected = pull(jax.tree.map(lambda w, o: w * o / len(X), weights, push(along)))[0]
        return objective.gauss_newton(params, X, key)[2](along), expected

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), *both(params))


@pytest.mark.slow
def test_hessian_free_finds_the_way_from_weights_near_zero(key):
    """Means that start at zero, twenty sds from the data, do not drive the variances away."""
    X = np.asarray(2.0 + 0.1 * generator_of(key).normal(size=(80, 6)), np.float32)
    model = VAE(
        2, (8,), likelihood="gaussian", init_scale=1e-3, method="hessian_free", max_epochs=30,
        validation_fraction=0, random_state=0,
    ).fit(X)  # fmt: skip
    oracle = float(np.sum(-0.5 * np.log(2 * np.pi * np.e * X.var(axis=0))))  # one normal per pixel
    assert model.elbo_ > oracle - 2
