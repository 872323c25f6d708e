"""Linear maps against dense automatic differentiation."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.extend.core import jaxprs_in_params
from jax.flatten_util import ravel_pytree

from curvi._core.errors import InputError
from curvi.linalg import (
    Definiteness,
    DenseMap,
    DiagonalMetric,
    FunctionMetric,
    Identity,
    conjugate_gradient,
    damped,
    gauss_newton,
    hessian,
    preconditioned,
    projected,
)
from tests.linalg.systems import positive_system, seeds


def precision(dtype):
    return 1e-5 if dtype == jnp.float64 else 2e-3


def make_params(seed, dtype, sizes):
    generator = np.random.default_rng(seed)
    params = [
        {"weight": generator.normal(size=(a, b)) / np.sqrt(a), "bias": generator.normal(size=b)}
        for a, b in itertools.pairwise(sizes)
    ]
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), params)


def network(dtype, sizes=(3, 4, 2), rows=6):
    """Outputs and loss of a small network with two kinds of output."""
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(rows, sizes[0])), dtype)

    def outputs(params):
        hidden = inputs
        for layer in params[:-1]:
            hidden = jnp.tanh(hidden @ layer["weight"] + layer["bias"][None, :])
        logits = hidden @ params[-1]["weight"] + params[-1]["bias"][None, :]
        return {"first": logits[:, 0], "rest": logits[:, 1:]}

    def loss(out):
        return jnp.mean(jax.nn.softplus(out["first"])) + 0.5 * jnp.mean(out["rest"] ** 2)

    return outputs, loss


def small_network(seed, dtype):
    return make_params(seed, dtype, (3, 4, 2)), *network(dtype)


def assert_close(found, expected, dtype):
    scale = np.abs(np.asarray(expected)).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=precision(dtype) * scale)


@jax.jit
def hessian_both_ways(params):
    outputs, loss = network(params[0]["bias"].dtype)
    flat, unravel = ravel_pytree(params)
    value, gradient, operator = hessian(lambda p: loss(outputs(p)), params)
    ours = value, ravel_pytree(gradient)[0], operator.dense()
    fn = lambda x: loss(outputs(unravel(x)))  # noqa: E731
    return ours, (fn(flat), jax.grad(fn)(flat), jax.hessian(fn)(flat))


@given(seed=seeds)
def test_the_hessian_operator_equals_the_dense_hessian_and_is_symmetric(dtype, seed):
    ours, theirs = hessian_both_ways(make_params(seed, dtype, (3, 4, 2)))
    for found, expected in zip(ours, theirs, strict=True):
        assert_close(found, expected, dtype)
    u, v = np.random.default_rng(seed).normal(size=(2, ours[2].shape[0]))
    matrix = np.asarray(ours[2], float)
    scale = np.linalg.norm(u) * np.linalg.norm(v) * np.linalg.norm(matrix)
    assert abs(u @ matrix @ v - v @ matrix @ u) <= precision(dtype) * scale


def test_nothing_is_claimed_about_the_sign_of_a_hessian(dtype):
    assert hessian(jnp.sum, jnp.ones(2, dtype))[2].definiteness is Definiteness.UNKNOWN


@jax.jit
def gauss_newton_both_ways(params):
    outputs, loss = network(params[0]["bias"].dtype)
    flat, unravel = ravel_pytree(params)
    value, gradient, operator = gauss_newton(outputs, loss, params)
    ours = value, ravel_pytree(gradient)[0], operator.dense()
    out, unravel_out = ravel_pytree(outputs(params))
    jacobian = jax.jacobian(lambda x: ravel_pytree(outputs(unravel(x)))[0])(flat)
    inner = jax.hessian(lambda o: loss(unravel_out(o)))(out)
    fn = lambda x: loss(outputs(unravel(x)))  # noqa: E731
    return ours, (fn(flat), jax.grad(fn)(flat), jacobian.T @ inner @ jacobian)


@given(seed=seeds)
def test_gauss_newton_equals_the_dense_product_and_is_positive_semi_definite(dtype, seed):
    ours, theirs = gauss_newton_both_ways(make_params(seed, dtype, (3, 4, 2)))
    for found, expected in zip(ours, theirs, strict=True):
        assert_close(found, expected, dtype)
    matrix = np.asarray(ours[2], float)
    spectrum = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    assert spectrum[0] >= -precision(dtype) * spectrum[-1]


def test_gauss_newton_of_linear_outputs_is_the_hessian(dtype):
    design = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)), dtype)
    weights = jnp.asarray([0.3, -0.2, 0.5], dtype)
    loss = lambda t: jnp.sum(jax.nn.softplus(t))  # noqa: E731
    _, _, approximate = gauss_newton(lambda w: design @ w, loss, weights)
    _, _, exact = hessian(lambda w: loss(design @ w), weights)
    assert_close(approximate.dense(), exact.dense(), dtype)
    assert approximate.definiteness is Definiteness.POSITIVE_SEMI


def primitives(jaxpr):
    """Names of all primitives, inside nested programs too."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jaxprs_in_params(equation.params):
            yield from primitives(inner)


@pytest.mark.parametrize("kind", ["hessian", "gauss_newton"])
def test_a_product_does_not_repeat_the_forward_pass(dtype, kind):
    sizes = (3, 4, 4, 2)
    params, (outputs, loss) = make_params(0, dtype, sizes), network(dtype, sizes)
    if kind == "hessian":
        operator = hessian(lambda p: loss(outputs(p)), params)[2]
    else:
        operator = gauss_newton(outputs, loss, params)[2]
    names = list(primitives(jax.make_jaxpr(operator)(params).jaxpr))
    assert not {"tanh", "logistic", "exp", "log1p"} & set(names)
    assert names.count("dot_general") > 0


def test_the_function_is_traced_once_however_many_products_are_made(dtype):
    params, outputs, loss = small_network(0, dtype)
    calls = []

    def fn(p):
        calls.append(1)
        return loss(outputs(p))

    @jax.jit
    def newton_step(p):
        _, gradient, operator = hessian(fn, p)
        rhs = jax.tree.map(jnp.negative, gradient)
        return conjugate_gradient(damped(operator, 1.0), rhs).solution, operator(rhs)

    newton_step(params)
    assert len(calls) == 1


def test_inside_the_loop_of_conjugate_gradients_the_forward_pass_is_a_constant(dtype):
    params, outputs, loss = small_network(0, dtype)

    def newton_step(p):
        _, gradient, operator = hessian(lambda q: loss(outputs(q)), p)
        return conjugate_gradient(operator, gradient).solution

    program = jax.make_jaxpr(newton_step)(params).jaxpr
    loops = [e for e in program.eqns if e.primitive.name == "while"]
    assert len(loops) == 1
    assert "tanh" not in set(primitives(loops[0].params["body_jaxpr"].jaxpr))
    assert "tanh" in set(primitives(program))


def test_a_product_costs_at_most_two_gradients(dtype):
    sizes = (20, 30, 30, 30, 5)
    params, (outputs, loss) = make_params(0, dtype, sizes), network(dtype, sizes, rows=40)
    fn = lambda p: loss(outputs(p))  # noqa: E731

    def operations(function):
        return jax.jit(function).lower(params).compile().cost_analysis()["flops"]

    operator = hessian(fn, params)[2]
    assert operations(operator.apply) <= 2 * operations(jax.grad(fn))


def tree_map_of(system, dtype):
    tree = {"a": jnp.zeros((2, 2), dtype), "b": jnp.zeros(1, dtype)}
    return DenseMap(jnp.asarray(system.matrix, dtype), tree, Definiteness.POSITIVE)


def test_a_dense_map_multiplies_in_the_order_of_ravel_pytree(dtype):
    system = positive_system(0, 5, 10.0)
    operator = tree_map_of(system, dtype)
    vector = jnp.arange(5).astype(dtype)
    tree = {"a": vector[:4].reshape(2, 2), "b": vector[4:]}
    assert_close(ravel_pytree(operator(tree))[0], system.matrix @ np.arange(5.0), dtype)
    assert_close(operator.dense(), system.matrix, dtype)
    assert_close(super(DenseMap, operator).dense(), system.matrix, dtype)


def test_damping_preconditioning_and_projection_equal_their_matrices(dtype):
    system = positive_system(1, 5, 10.0)
    operator = tree_map_of(system, dtype)
    entries = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    metric = DiagonalMetric(
        {"a": jnp.asarray(entries[:4].reshape(2, 2), dtype), "b": jnp.asarray(entries[4:], dtype)}
    )
    assert_close(damped(operator, 0.5).dense(), system.matrix + 0.5 * np.eye(5), dtype)
    assert_close(
        damped(operator, 0.5, metric).dense(), system.matrix + 0.5 * np.diag(entries), dtype
    )
    root = np.sqrt(entries)
    assert_close(
        preconditioned(operator, metric).dense(), system.matrix / np.outer(root, root), dtype
    )
    assert_close(preconditioned(operator, Identity()).dense(), system.matrix, dtype)
    keep = np.array([1.0, 0.0, 1.0, 1.0, 0.0])
    mask = {"a": jnp.asarray(keep[:4].reshape(2, 2), dtype), "b": jnp.asarray(keep[4:], dtype)}
    cut = projected(operator, lambda v: jax.tree.map(jnp.multiply, mask, v))
    assert_close(cut.dense(), system.matrix * np.outer(keep, keep), dtype)
    assert cut.definiteness is Definiteness.POSITIVE_SEMI


def test_definiteness_follows_from_what_is_known(dtype):
    example = jnp.zeros(2, dtype)
    semi = DenseMap(jnp.zeros((2, 2), dtype), example, Definiteness.POSITIVE_SEMI)
    unknown = DenseMap(jnp.zeros((2, 2), dtype), example)
    assert damped(semi, 0.1).definiteness is Definiteness.POSITIVE
    assert damped(semi, 0.0).definiteness is Definiteness.POSITIVE_SEMI
    assert damped(semi, jnp.asarray(0.1, dtype)).definiteness is Definiteness.POSITIVE_SEMI
    assert damped(unknown, 0.1).definiteness is Definiteness.UNKNOWN


def test_bad_maps_are_refused(dtype):
    example = jnp.zeros(2, dtype)
    with pytest.raises(InputError, match=r"shape \(3, 3\)"):
        DenseMap(jnp.eye(3, dtype=dtype), example)
    operator = DenseMap(jnp.eye(2, dtype=dtype), example)
    with pytest.raises(InputError, match="damping is -1"):
        damped(operator, -1.0)
    with pytest.raises(InputError, match="no square root"):
        preconditioned(operator, FunctionMetric(lambda v: v, lambda v: v))
    with pytest.raises(InputError, match="params has dtype int32"):
        hessian(jnp.sum, jnp.ones(2, jnp.int32))
