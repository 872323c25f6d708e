"""The deep Markov model: its bound against a Kalman filter, padding, and its uses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import curvi
from curvi.solvers._kronecker import _forward, layer_factors
from curvi.solvers._traced_layers import with_layers
from curvi.vae._markov import Batch, MarkovObjective
from curvi.vae._markov_training import (
    padded,
    sequence_bounds,
)
from tests.families.kalman import LinearGaussian, smoothed
from tests.vae.markov_cases import HIDDEN, LATENT, WIDTH, generator, tunes, weights

pytestmark = pytest.mark.float64_only


@pytest.mark.slow
def test_padding_and_the_order_of_sequences_change_nothing(key):
    rng = generator(key)
    params, found = weights(rng), tunes(rng, 3)
    objective = MarkovObjective()
    batch = padded(found, np.float64)
    wide = Batch(np.pad(batch.x, ((0, 0), (0, 7), (0, 0)), constant_values=1.0), *batch[1:])

    def nats(b, width):  # the same noise for the same step of the same sequence
        noise = jnp.asarray(np.random.default_rng(0).normal(size=(40, 3, LATENT))[:width])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax.random, "normal", lambda *_: noise)
            return objective.per_sequence(params, Batch(*map(jnp.asarray, b)), key)

    short, long = nats(batch, batch.x.shape[1]), nats(wide, wide.x.shape[1])
    np.testing.assert_allclose(short, long, rtol=1e-12)


@pytest.mark.slow
def test_cutting_a_batch_behind_its_longest_sequence_changes_nothing(key):
    rng = generator(key)
    params, found = weights(rng), tunes(rng, 4)
    batch = Batch(*map(jnp.asarray, padded(found, np.float64)))
    one, cut = MarkovObjective(), MarkovObjective(lengths=(4, 16))
    many = 400
    keys = jax.random.split(key, many)
    first, second = (
        jax.jit(jax.vmap(lambda k, o=o: o(params, batch, k)))(keys) for o in (one, cut)
    )
    error = 6 * np.hypot(first.std(), second.std()) / many**0.5
    assert abs(first.mean() - second.mean()) < error


def test_the_bound_of_a_linear_gaussian_model_is_below_its_evidence(key):
    """Weights that make the model linear: the Kalman filter then gives the evidence exactly.

    The bound is averaged over 2,000 draws, and compared up to six standard errors.
    """
    rng = generator(key)
    params = weights(rng)
    params["transition"]["gate"]["b"] = jnp.full(LATENT, -60.0)
    matrix = 0.6 * np.linalg.qr(rng.normal(size=(LATENT, LATENT)))[0]
    params["transition"]["linear"]["w"] = jnp.asarray(matrix)
    params["transition"]["log_sd"]["w"] = jnp.zeros((LATENT, LATENT))
    # Two layers of rectifiers pass z and -z on, and the last layer puts them together.
    first = np.zeros((LATENT, HIDDEN))
    first[:, :LATENT], first[:, LATENT:] = np.eye(LATENT), -np.eye(LATENT)
    params["emission"]["first"] = {"w": jnp.asarray(first), "b": jnp.zeros(HIDDEN)}
    params["emission"]["second"] = {"w": jnp.eye(HIDDEN), "b": jnp.zeros(HIDDEN)}
    emission = rng.normal(size=(WIDTH, LATENT))
    out = np.concatenate([emission.T, -emission.T])
    params["emission"]["out"] = {"w": jnp.asarray(out), "b": jnp.zeros(WIDTH)}
    params["emission"]["log_sd"] = jnp.full(WIDTH, -0.3)
    x = rng.normal(size=(6, WIDTH))
    sd = float(jax.nn.softplus(0.0)) + 1e-4
    model = LinearGaussian(
        matrix.T, sd**2 * np.eye(LATENT), emission, np.exp(-0.6) * np.eye(WIDTH), np.eye(LATENT)
    )
    evidence = smoothed(model, x)[2]
    objective = MarkovObjective("gaussian")
    batch = Batch(*map(jnp.asarray, padded([x], np.float64)))
    keys = jax.random.split(key, 2000)
    nats = np.asarray(
        jax.jit(jax.vmap(lambda k: objective.per_sequence(params, batch, k)[0]))(keys)
    )
    assert -nats.mean() < evidence + 6 * nats.std() / len(nats) ** 0.5
    # With q equal to the transition the divergence is zero, and the rest has a closed form.
    params["recognition"]["log_precision"]["b"] = jnp.full(LATENT, -60.0)
    blind = np.asarray(
        jax.jit(jax.vmap(lambda k: objective.per_sequence(params, batch, k)[0]))(keys)
    )
    covariance, expected = np.eye(LATENT), 0.0
    for row in x:
        spread = np.sum(row**2) + np.trace(emission @ covariance @ emission.T)
        expected -= 0.5 * (np.exp(0.6) * spread + WIDTH * np.log(2 * np.pi * np.exp(-0.6)))
        covariance = matrix.T @ covariance @ matrix + sd**2 * np.eye(LATENT)
    assert abs(-blind.mean() - expected) < 6 * blind.std() / len(blind) ** 0.5 + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(), (4, 16)])
def test_the_gauss_newton_map_is_symmetric_and_positive_and_has_the_gradient(key, lengths):
    rng = generator(key)
    params, objective = weights(rng), MarkovObjective(l2=0.1, lengths=lengths)
    batch = Batch(*map(jnp.asarray, padded(tunes(rng, 2), np.float64)))
    flat, unravel = ravel_pytree(params)
    u, v = (jnp.asarray(rng.normal(size=flat.shape)) for _ in range(2))

    @jax.jit
    def products(p):
        value, gradient, operator = objective.gauss_newton(p, batch, key)
        moved = [ravel_pytree(operator.apply(unravel(x)))[0] for x in (u, v)]
        return (value, gradient, *moved), jax.value_and_grad(objective)(p, batch, key)

    (value, gradient, on_u, on_v), (expected, slope) = products(params)
    assert value == pytest.approx(float(expected))
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(slope), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    assert float(u @ on_v) == pytest.approx(float(v @ on_u), rel=1e-9)
    assert float(u @ on_u) > 0


def layer_jacobians(layered, params, batch, key):
    """Rows that enter each layer, and derivatives of all outputs times root curvature in its taps.

    Both for one draw of the noise; the outputs are flattened.
    """
    outputs, pull, inputs = _forward(layered, params, batch, key)
    weight, unravel = ravel_pytree(layered.curvature(outputs))
    deltas = jax.vmap(lambda v: pull(unravel(jnp.sqrt(weight) * v))[0])(jnp.eye(weight.size))
    return inputs, deltas


@pytest.mark.parametrize(
    "likelihood", [pytest.param("bernoulli", marks=pytest.mark.slow), "gaussian"]
)
def test_the_layers_of_all_steps_make_up_the_gauss_newton_matrix(key, likelihood):
    """J = sum over rows of a times the derivative in the tap of the row, so J' J is the matrix.

    KFAC keeps what a row has with itself; the factors are checked against that below. The second
    sequence is shorter than the first: its padding counts neither in the rows nor in their number.
    """
    rng = generator(key)
    params, objective = weights(rng), MarkovObjective(likelihood)
    found = [rng.integers(0, 2, (n, WIDTH)).astype(float) for n in (3, 2)]
    batch = Batch(*map(jnp.asarray, padded(found, np.float64)))._replace(weight=jnp.full(2, 0.7))
    layered = with_layers(objective, params, batch, key)
    assert len(layered.places) == 13
    many = 400

    @jax.jit
    def compute(params):
        inputs, deltas = layer_jacobians(layered, params, batch, key)
        _, _, operator = objective.gauss_newton(params, batch, key)
        flat, unravel = ravel_pytree(params)
        dense = jax.vmap(lambda v: ravel_pytree(operator.apply(unravel(v)))[0])(jnp.eye(flat.size))

        def gap(k):
            rows, jacobians = layer_jacobians(layered, params, batch, k)
            first, second = layer_factors(layered, params, batch, k)
            exact = [jnp.sum(j * j) / 5 for j in jacobians]
            traces = [g.sum() if g.shape[0] == 1 else jnp.trace(g) for g in second]
            moments = [a.T @ a / 5 for a in rows[:13]]
            return jnp.asarray(traces) - jnp.asarray(exact), moments, first[:13]

        return inputs, deltas, dense, jax.vmap(gap)(jax.random.split(key, many))

    inputs, deltas, dense, (gaps, moments, factors) = compute(params)
    blocks = [np.einsum("ri,kro->kio", a, d) for a, d in zip(inputs, deltas, strict=True)]
    rows = [ravel_pytree(layered.assemble(params, tuple(map(jnp.asarray, row))))[0]
            for row in zip(*blocks, strict=True)]  # fmt: skip
    jacobian = np.stack(rows)
    np.testing.assert_allclose(jacobian.T @ jacobian / 5, dense, atol=1e-10)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), moments, list(factors))
    spread = np.asarray(gaps).std(axis=0)
    assert np.all(np.abs(np.mean(gaps, axis=0)) <= 6 * spread / many**0.5 + 1e-12)


@pytest.fixture(scope="module")
def trained():
    rng = np.random.default_rng(3)
    found = tunes(rng, 16)
    model = curvi.DeepMarkovModel(
        LATENT, 8, max_epochs=400, annealing=50, learning_rate=1e-2, patience=100
    )
    with jax.numpy_dtype_promotion("standard"):  # optax.adam multiplies floats by integers
        return model.fit(found, validation_sequences=found[:4]), found


@pytest.mark.slow
def test_training_beats_a_model_without_memory(trained):
    """Every step of a tune has one note of three: independent notes cost 1.91 nats per step."""
    model, found = trained
    share = np.concatenate(found).mean(axis=0)
    trivial = float(np.sum(share * np.log(share) + (1 - share) * np.log(1 - share)))
    assert model.bound(found) > trivial + 0.3
    assert model.bound(found) == pytest.approx(
        np.average(model.bound(found, per_sequence=True), weights=[len(s) for s in found]), rel=1e-5
    )


@pytest.mark.slow
def test_kfac_with_factors_shared_over_time_gets_there_too(trained):
    adam, found = trained
    model = curvi.DeepMarkovModel(
        LATENT, 8, max_epochs=400, annealing=50, method="kfac", l2=1e-4, patience=100
    )
    with jax.numpy_dtype_promotion("standard"):
        model.fit(found, validation_sequences=found[:4])
    assert model.bound(found) > adam.bound(found) - 0.1


@pytest.mark.slow
def test_a_trained_model_samples_forecasts_smooths_and_fills_gaps(trained):
    model, found = trained
    drawn = model.sample(5, 7, seed=1)
    assert drawn.shape == (5, 7, WIDTH)
    assert set(np.unique(drawn)) <= {0.0, 1.0}
    np.testing.assert_array_equal(drawn, model.sample(5, 7, seed=1))
    ahead = model.forecast(found[0], 4)
    assert ahead.shape == (4, WIDTH)
    assert ((ahead > 0) & (ahead < 1)).all()
    states = model.smooth(found)
    assert [s.shape for s in states] == [(len(s), LATENT) for s in found]
    gaps = found[0].copy()
    gaps[1] = np.nan
    filled = model.impute(gaps)
    assert np.isfinite(filled).all()
    np.testing.assert_array_equal(filled[0], found[0][0])
    further = curvi.DeepMarkovModel(LATENT, 8, max_epochs=1, patience=5)
    with jax.numpy_dtype_promotion("standard"):
        further.fit(found, start=model.params_)
    assert further.bound(found) > -1.9


@pytest.mark.slow
def test_a_padded_array_with_lengths_is_the_list_of_its_sequences(trained):
    model, found = trained
    batch = padded(found, np.float64)
    given = {"sequences": batch.x, "lengths": batch.length}
    assert model.bound(**given) == model.bound(found)
    for one, other in zip(model.smooth(**given), model.smooth(found), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_checkpoint_resumes_to_the_same_weights(tmp_path):
    found = tunes(np.random.default_rng(0), 12)
    path = tmp_path / "run"

    def model(epochs=60):
        return curvi.DeepMarkovModel(LATENT, 4, max_epochs=epochs, annealing=2, patience=100)

    with jax.numpy_dtype_promotion("standard"):
        whole = model().fit(found)
        first = model().fit(found, checkpoint=path)
        again = model().fit(found, checkpoint=path)
        short, other = tmp_path / "short", tunes(np.random.default_rng(1), 4)
        model(1).fit(found, validation_sequences=found[:4], checkpoint=short)
        with pytest.raises(curvi.InputError, match="data was"):
            model(1).fit(found, validation_sequences=other, checkpoint=short)
    for one in (first, again):
        for a, b in zip(jax.tree.leaves(one.params_), jax.tree.leaves(whole.params_), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_the_gradient_of_a_batch_that_is_cut_off_is_that_of_the_whole(key):
    """Steps behind the last one of every sequence are masked: the same noise, the same slope."""
    rng = generator(key)
    params, found = weights(rng), tunes(rng, 4)
    batch = Batch(*map(jnp.asarray, padded(found, np.float64)))
    objective = MarkovObjective(lengths=(batch.x.shape[1] + 5,))
    for one in (objective, MarkovObjective()):
        slope = jax.grad(one)(params, batch, key)
        expected = jax.grad(one._mean)(params, batch, key)
        for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)


def test_the_penalty_is_half_the_squares_of_matrices_alone(key):
    params = weights(generator(key))
    squares = sum(np.sum(leaf**2) for leaf in jax.tree.leaves(params) if leaf.ndim == 2)
    assert float(MarkovObjective(l2=0.2).penalty(params)) == pytest.approx(0.1 * float(squares))


REFUSED = {
    "none": (lambda: curvi.DeepMarkovModel().fit([]), "no sequences"),
    "flat": (lambda: curvi.DeepMarkovModel().fit([np.ones(3)]), "shape \\(steps, width\\)"),
    "widths": (lambda: curvi.DeepMarkovModel().fit([np.ones((3, 2)), np.ones((3, 1))]), "1 wide"),
    "range": (lambda: curvi.DeepMarkovModel().fit([np.full((3, 2), 2.0)]), "outside \\[0, 1\\]"),
    "nan": (lambda: curvi.DeepMarkovModel().fit([np.full((3, 2), np.nan)]), "impute"),
    "lengths": (lambda: curvi.DeepMarkovModel().fit(np.ones((2, 3, 1)), lengths=[1]), "1 lengths"),
    "not fitted": (lambda: curvi.DeepMarkovModel().sample(1, 2), "call fit"),
    "method": (lambda: curvi.DeepMarkovModel(method="sgd").fit([np.ones((3, 2))]), "choose one of"),
    "dropout": (lambda: curvi.DeepMarkovModel(dropout=1.0).fit([np.ones((3, 2))]), "below 1"),
    "l2": (lambda: curvi.DeepMarkovModel(l2=-1.0).fit([np.ones((3, 2))]), "l2 is -1.0"),
}


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_trained_is_refused(call, sentence):
    with pytest.raises(curvi.InputError, match=sentence):
        call()


@pytest.mark.slow
def test_bounds_of_blocks_of_sequences_come_back_in_order(key):
    rng = generator(key)
    params = weights(rng)
    batch = padded(tunes(rng, 5), np.float64)
    whole = sequence_bounds(MarkovObjective(num_draws=300), params, batch, 0)
    for index in range(5):
        one = Batch(*(leaf[index : index + 1] for leaf in batch))
        alone = sequence_bounds(MarkovObjective(num_draws=300), params, one, 1)[0]
        assert whole[index] == pytest.approx(alone, rel=0.15)
