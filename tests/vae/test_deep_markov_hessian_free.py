"""Hessian-free steps on deep Markov models: one vector of parameters, few loops to compile."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jax.flatten_util import ravel_pytree

import curvi
from curvi.engine import Resources
from curvi.solvers import KFAC, HessianFree
from curvi.solvers._kronecker import layer_factors
from curvi.solvers._method import Layered
from curvi.solvers._traced_layers import with_layers
from curvi.vae._markov import Batch, MarkovObjective
from curvi.vae._markov_flat import flattened
from curvi.vae._markov_training import Annealed, SequenceProblem, cut_lengths, padded
from tests.vae.markov_cases import LATENT, generator, tunes, weights

pytestmark = pytest.mark.float64_only


@pytest.mark.slow
def test_an_objective_of_one_vector_is_that_of_the_tree(key):
    rng = generator(key)
    params = weights(rng)
    batch = Batch(*map(jnp.asarray, padded(tunes(rng, 3), np.float64)))
    layered = with_layers(MarkovObjective(l2=0.1), params, batch, key)
    flat, vector = flattened(layered, params)

    @jax.jit
    def both(p):
        found = []
        for objective, at in ((layered, p), (flat, ravel_pytree(p)[0])):
            value, gradient, operator = objective.gauss_newton(at, batch, key)
            factors = layer_factors(objective, at, batch, key)
            halved = objective.assemble(at, tuple(0.5 * m for m in objective.matrices(at)))
            parts = (gradient, operator(at), halved)
            found.append((value, objective(at, batch, key), factors, *map(flattened_tree, parts)))
        return found

    for one, other in zip(*map(jax.tree.leaves, both(params)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(ravel_pytree(flat.tree(vector))[0], vector)


def flattened_tree(tree):
    return ravel_pytree(tree)[0]


@pytest.mark.slow
def test_hessian_free_steps_train_and_keep_the_weights_as_they_are_named():
    found = tunes(np.random.default_rng(0), 8)
    model = curvi.DeepMarkovModel(
        LATENT, 4, max_epochs=60, annealing=2, batch_size=8, method="hessian_free", patience=100
    )
    model.fit(found, validation_sequences=found)
    history = model.history_["validation_elbo"]
    assert model.elbo_ > history[0] - 1e-6
    assert model.bound(found) > -1.91
    assert set(model.params_) == {"start", "transition", "emission", "recognition"}


def loops(jaxpr):
    """Loops over time in a program, those within others too: XLA compiles each of them."""
    return sum(
        (equation.primitive.name == "scan") + sum(map(loops, jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )


@pytest.mark.slow
def test_a_hessian_free_step_has_few_loops_over_time(key):
    """Two samples, three products, one value: with branches for three lengths there were 92."""
    rng = generator(key)
    batch = Batch(*map(jnp.asarray, padded(tunes(rng), np.float64)))
    params, method = weights(rng), HessianFree()
    objective = MarkovObjective(lengths=cut_lengths(np.asarray(batch.length), 2, method))
    assert objective.lengths == ()
    assert cut_lengths(np.asarray(batch.length), 2, KFAC())
    layered, vector = flattened(with_layers(objective, params, batch, key), params)
    assert isinstance(layered, Layered)
    problem = SequenceProblem(layered, 2, False)
    resources = Resources(key, Annealed(batch, jnp.asarray(1.0)), None)
    state = method.init(problem, vector, resources)
    found = jax.make_jaxpr(lambda s: method.step(problem, s, resources, jnp.asarray(1), 0.0))(state)
    assert loops(found.jaxpr) <= 40
