"""The errata of the paper: each check fails for the printed form and passes for the corrected one.

`docs/errata.md` has a section for every test.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from curvi.linalg import relative_error_bound
from curvi.paper import concentration, reference
from tests.paper.reference.sampled import generator, vec
from tests.vae import appendix

pytestmark = pytest.mark.float64_only
SIZES = {1: (4, 5), 2: (3, 4), 3: (3, 4), 4: (4, 3), 5: (5, 4)}
DECAY = 0.3


def close(left, right):
    """Agreement to many digits; a wrong formula is off in the first or the second."""
    size = np.max(np.abs(right)) + 1e-3
    error = np.max(np.abs(np.asarray(left) - np.asarray(right))) / size
    assert error < 1e-5 or error > 1e-3, "neither a rounding error nor another formula"
    return bool(error < 1e-5)


def difference(function, point, direction, step=1e-5):
    """The derivative of a function along a direction, by central differences."""
    ahead, behind = function(point + step * direction), function(point - step * direction)
    return (ahead - behind) / (2 * step)


@pytest.fixture
def rng(key):
    return generator(key)


@pytest.fixture
def network(rng):
    """Weights and biases of the network of the appendix, directions for both, images and noise."""
    W, V = ({i: rng.standard_normal(shape) for i, shape in SIZES.items()} for _ in range(2))
    b, c = ({i: rng.standard_normal((s[0], 1)) for i, s in SIZES.items()} for _ in range(2))
    return W, b, V, c, rng.random((5, 6)), rng.standard_normal((3, 6))


def test_1_the_derivative_of_a_sd_has_a_factor_one_half(network):
    """Appendix, R-operator: sigma_e = exp(s_3 / 2), hence R{sigma_e} = R{s_3} exp(s_3 / 2) / 2."""
    W, b, V, c, X, noise = network

    def sds(step):
        moved = [{i: one[i] + step * other[i] for i in one} for one, other in ((W, V), (b, c))]
        return appendix.forward(*moved, X, noise, True)["sigma"]

    true = difference(sds, 0.0, 1.0)
    activations = appendix.forward(W, b, X, noise, True)

    def by_factor(factor):
        return appendix.r_forward(W, V, c, activations, noise, True, factor=factor)["sigma"]

    assert close(by_factor(0.5), true)
    assert not close(by_factor(1.0), true)


def test_2_a_kronecker_product_sandwiches_the_matrix_the_other_way_round(rng):
    """Section 2.2: (A' kron B) vec(V) = vec(B V A), and the gradient in R is E[g eps']."""
    A, V, B = rng.standard_normal((3, 3, 3))
    assert close(np.kron(A.T, B) @ vec(V), vec(B @ V @ A))
    assert not close(np.kron(A.T, B) @ vec(V), vec(A @ V @ B))
    mean, scale, draws = rng.standard_normal(3), rng.standard_normal((3, 3)), rng.random((5, 3))

    def expectation(scale):
        return jnp.mean(jnp.sum(jnp.sin(mean[None] + draws @ scale.T), axis=1))

    slopes = np.cos(mean + draws @ scale.T)
    true = jax.grad(expectation)(jnp.asarray(scale))
    assert close(slopes.T @ draws / len(draws), true)
    assert not close(draws.T @ slopes / len(draws), true)


def test_3_newton_solves_for_minus_the_gradient_and_bfgs_keeps_the_secant(rng):
    """Section 2.3: H p = -grad F, not -grad F' v; the first denominator of BFGS is dG' dtheta."""
    root = rng.standard_normal((3, 3))
    H, top, at = root @ root.T + 2 * np.eye(3), rng.standard_normal(3), rng.standard_normal(3)
    slope = H @ (at - top)
    assert close(at + np.linalg.solve(H, -slope), top)
    v = rng.standard_normal(3)
    printed = np.full(3, -slope @ v)  # a number on the right-hand side, whatever v is
    assert not close(at + np.linalg.solve(H, printed), top)

    step = rng.standard_normal(3)
    change, B = H @ step, np.eye(3)

    def updated(denominator):
        second = np.outer(B @ step, B @ step) / (step @ B @ step)
        return B + np.outer(change, change) / denominator - second

    assert close(updated(change @ step) @ step, change)
    assert not close(updated(step @ step) @ step, change)


def test_4_a_penalty_is_subtracted_from_a_gradient_of_ascent(network):
    """Appendix, back-propagation: the deltas are those of the bound, so L2 enters as -lambda W."""
    W, b, _, _, X, noise = network

    def penalised(fifth):
        moved = W | {5: fifth}
        bound = appendix.bound(appendix.forward(moved, b, X, noise, True), 1.0, True)
        return bound - DECAY / 2 * np.sum(fifth**2)

    activations = appendix.forward(W, b, X, noise, True)
    deltas = appendix.deltas(W, activations, 1.0, True)
    unit = np.eye(W[5].size).reshape(-1, *W[5].shape)
    true = np.array([difference(penalised, W[5], one) for one in unit]).reshape(W[5].shape)
    assert close(appendix.gradient(W, activations, deltas, DECAY)[0][5], true)
    assert not close(appendix.gradient(W, activations, deltas, -DECAY)[0][5], true)


def test_5_the_covariance_is_rr_and_the_parameter_of_the_lemma_is_half_pi_times_l(rng):
    """Lemma 4: C = R R', not R' R; before Theorem 2: sub-Gaussian with pi L / 2 by its proof."""
    R = np.array([[1.0, 1.0], [0.0, 1.0]])
    draws = np.array(list(itertools.product((-1.0, 1.0), repeat=2)))  # of covariance I
    z = draws @ R.T
    assert close(z.T @ z / len(draws), R @ R.T)
    assert not close(z.T @ z / len(draws), R.T @ R)
    # A unit is steepest in the noise where it crosses zero. With C fixed, and R a root of it:
    w, C = np.array([[0.0, 1.0]]), R.T @ R
    steepest = np.sqrt(w @ C @ w.T).item()
    right = concentration.unit_lipschitz(w, np.linalg.cholesky(C), activation="tanh")[0]
    printed = concentration.unit_lipschitz(w, R, activation="tanh")[0]
    assert steepest <= right * (1 + 1e-12)
    assert steepest > 1.4 * printed

    # A sub-Gaussian parameter s means E exp(l (X - E X)) <= exp(s^2 l^2 / 2).
    L, rate = rng.uniform(0.5, 2.0, 2)
    proved = np.exp(L**2 * rate**2 * np.pi**2 / 8)
    assert close(np.exp((np.pi * L / 2) ** 2 * rate**2 / 2), proved)
    assert not close(np.exp(L**2 * rate**2 / 2), proved)


def test_6_the_error_of_conjugate_gradients_is_bounded_with_a_factor_two():
    """Appendix: a relative error of K steps is at most 2 exp(-2 K / sqrt(c)), not half of it."""
    condition, steps = 100.0, 10
    worst = worst_relative_error(condition, steps)
    assert worst <= float(relative_error_bound(condition, steps))
    assert worst > 1.5 * np.exp(-2 * steps / np.sqrt(condition))


def worst_relative_error(condition, steps):
    """The A-norm of the error of K steps over that of none, in the problem that is worst for K.

    The eigenvalues are the extrema of a Chebyshev polynomial; weights as its values at zero ask.
    """
    eigenvalues = (condition + 1) / 2 + (condition - 1) / 2 * np.cos(
        np.pi * np.arange(steps + 1) / steps
    )
    weights = np.array(
        [np.abs(np.prod([b / (b - a) for b in eigenvalues if b != a])) for a in eigenvalues]
    )
    b = np.sqrt(weights * eigenvalues)  # of the solution sqrt(weights / eigenvalues)
    x, residual = np.zeros_like(b), b.copy()
    direction = residual
    for _ in range(steps):
        image = eigenvalues * direction
        length = residual @ residual / (direction @ image)
        x, old = x + length * direction, residual
        residual = residual - length * image
        direction = residual + (residual @ residual) / (old @ old) * direction

    def norm(error):
        return np.sqrt(np.sum(eigenvalues * error**2))

    return norm(x - b / eigenvalues) / norm(b / eigenvalues)


def test_7_tied_entries_of_a_covariance_double_the_derivative():
    """Equations (1) to (3) take C_ij and C_ji for separate; a symmetric matrix ties them."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    draws = jnp.asarray(list(itertools.product(nodes, repeat=2)))
    products = jnp.asarray(
        [np.prod(w) for w in itertools.product(weights / weights.sum(), repeat=2)]
    )
    mean, C = jnp.asarray([0.3, -0.2]), np.array([[1.0, 0.4], [0.4, 2.0]])

    def f(z):
        return z[0] * z[1] ** 3 + z[0] ** 2

    def expectation(covariance):
        points = mean[None] + draws @ jnp.linalg.cholesky(jnp.asarray(covariance)).T
        return products @ jax.vmap(f)(points)

    both = np.array([[0.0, 1.0], [1.0, 0.0]])  # the only way to move an off-diagonal entry
    true = difference(expectation, C, both)
    printed = reference.covariance_gradient(
        f, mean, jnp.linalg.cholesky(jnp.asarray(C)), draws, weights=products
    )
    assert close(reference.tie_covariance_gradient(printed)[1], true)
    assert not close(printed[1, 0], true)


def test_the_page_has_a_section_for_every_check():
    page = (Path(__file__).parents[3] / "docs" / "errata.md").read_text(encoding="utf-8")
    checks = [name for name in globals() if re.match(r"test_\d", name)]
    assert re.findall(r"`(test_\d\w*)`", page) == checks
    assert len(re.findall(r"^## \d", page, re.MULTILINE)) == len(checks) == 7
