"""Every family against dense linear algebra, SciPy densities and the definition of its parts."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import curvi
from curvi._core.errors import InputError
from curvi.families import (
    Laplace,
    LocationScale,
    Logistic,
    MultivariateTBase,
    Normal,
    Params,
    StudentTBase,
)
from curvi.families._arrow import Arrow
from curvi.families._scales import LowerTriangular
from tests.copies import each_copy

DIMENSION = 4
FAMILIES = [
    curvi.MeanField(),
    curvi.FullRank(),
    curvi.LowRank(2),
    curvi.StudentT(5.0),
    curvi.StudentT(4.5, covariance="full"),
    LocationScale(Laplace()),
    LocationScale(Logistic(), "full"),
    curvi.Chain(2, 2),
]
BASES = [Normal(), Laplace(), Logistic(), StudentTBase(5.0), MultivariateTBase(5.0)]
names = [str(f) for f in FAMILIES]
GAUSSIAN = [*FAMILIES[:3], curvi.Chain(4, 1), curvi.Chain(2, 2)]


def random_params(family, key, dtype, dimension=DIMENSION):
    start = jax.random.normal(key, (dimension,), dtype)
    params = family.init(start, 0.7)
    flat, unravel = ravel_pytree(params)
    noise = jax.random.normal(jax.random.fold_in(key, 1), flat.shape, dtype)
    return unravel(flat + 0.3 * noise)


def dense_scale(family, params, dtype):
    """R as a matrix, column by column."""
    identity = jnp.eye(family.num_noise(DIMENSION), dtype=dtype)
    columns = jax.vmap(lambda e: family.transform(params, e) - params.mean)(identity)
    return np.asarray(columns, np.float64).T


def tolerance(dtype):
    return {"rtol": 1e-9, "atol": 1e-10} if dtype == jnp.float64 else {"rtol": 2e-3, "atol": 1e-4}


@pytest.mark.parametrize("family", FAMILIES, ids=names)
def test_the_start_is_the_position_with_the_given_sd(family, dtype):
    position = jnp.arange(DIMENSION, dtype=dtype)
    params = family.init(position, 0.5)
    np.testing.assert_array_equal(params.mean, position)
    np.testing.assert_allclose(family.sd(params), 0.5, rtol=0.05)


SCALES = {
    "triangular": LowerTriangular(),
    "arrow": Arrow(1, ((3, 1),)),
    "blocks": Arrow(2, ((1, 2),)),
}


@pytest.mark.float64_only
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_a_column_of_r_with_a_negative_diagonal_entry_is_turned_as_a_whole(scale, key, dtype):
    """Full steps in the entries of R can end there; the covariance is that of these entries."""
    flat, unravel = ravel_pytree(scale.init(jnp.ones(DIMENSION, dtype)))
    given = scale.project(None, unravel(flat + 0.5 * jax.random.normal(key, flat.shape, dtype)))
    factor = scale.diagonal_and_factor(given)[1]
    step = jax.tree.map(lambda leaf: -2 * leaf, scale.to_raw(given))  # ends at -R
    found = scale.from_raw(jax.tree.map(jnp.add, scale.to_raw(given), step))
    np.testing.assert_allclose(scale.diagonal_and_factor(found)[1], factor, **tolerance(dtype))


@pytest.mark.parametrize("family", FAMILIES, ids=names)
def test_covariance_sd_and_determinant_agree_with_the_dense_scale(family, key, dtype):
    params = random_params(family, key, dtype)
    scale = dense_scale(family, params, dtype)
    covariance = family.base.variance * scale @ scale.T
    np.testing.assert_allclose(family.covariance(params), covariance, **tolerance(dtype))
    np.testing.assert_allclose(family.sd(params), np.sqrt(np.diag(covariance)), **tolerance(dtype))
    half_log_det = 0.5 * np.linalg.slogdet(scale @ scale.T)[1]
    np.testing.assert_allclose(
        family.entropy(params) - family.base.entropy(DIMENSION), half_log_det, **tolerance(dtype)
    )


@pytest.mark.parametrize("family", GAUSSIAN, ids=str)
def test_gaussian_densities_agree_with_scipy(family, key, dtype):
    params = random_params(family, key, dtype)
    z = jax.random.normal(jax.random.fold_in(key, 2), (DIMENSION,), dtype)
    oracle = scipy.stats.multivariate_normal(
        np.asarray(params.mean, float), np.asarray(family.covariance(params), float)
    )
    np.testing.assert_allclose(
        family.log_prob(params, z), oracle.logpdf(np.asarray(z)), **tolerance(dtype)
    )
    np.testing.assert_allclose(family.entropy(params), oracle.entropy(), **tolerance(dtype))


def test_the_multivariate_t_agrees_with_scipy(key, dtype):
    family = curvi.StudentT(4.5, covariance="full")
    params = random_params(family, key, dtype)
    shape = np.asarray(family.covariance(params), float) / family.base.variance
    oracle = scipy.stats.multivariate_t(np.asarray(params.mean, float), shape, df=4.5)
    z = jax.random.normal(jax.random.fold_in(key, 2), (DIMENSION,), dtype)
    np.testing.assert_allclose(
        family.log_prob(params, z), oracle.logpdf(np.asarray(z)), **tolerance(dtype)
    )
    np.testing.assert_allclose(family.entropy(params), oracle.entropy(), **tolerance(dtype))


SCIPY = [
    (Normal(), scipy.stats.norm()),
    (Laplace(), scipy.stats.laplace()),
    (Logistic(), scipy.stats.logistic()),
    (StudentTBase(5.0), scipy.stats.t(5.0)),
    (MultivariateTBase(5.0), scipy.stats.t(5.0)),
]


@pytest.mark.parametrize(("base", "oracle"), SCIPY, ids=lambda p: type(p).__name__)
def test_bases_agree_with_scipy_in_one_dimension(base, oracle, key, dtype):
    x = jax.random.normal(key, (1,), dtype) * 2
    np.testing.assert_allclose(
        base.log_prob(x), oracle.logpdf(np.asarray(x, float))[0], **tolerance(dtype)
    )
    np.testing.assert_allclose(base.entropy(1), oracle.entropy(), rtol=1e-8)
    np.testing.assert_allclose(base.variance, oracle.var(), rtol=1e-12)
    if not isinstance(base, MultivariateTBase):
        u = np.linspace(0.01, 0.99, 9)[:, None]
        np.testing.assert_allclose(base.from_uniform(u), oracle.ppf(u), atol=1e-9)


@pytest.mark.parametrize(("base", "oracle"), SCIPY, ids=lambda p: type(p).__name__)
def test_samples_follow_the_base(base, oracle, key, dtype):
    draws = np.asarray(base.sample(key, (20_000, 1), dtype), float).ravel()
    assert scipy.stats.kstest(draws, oracle.cdf).pvalue > 1e-7


def test_the_multivariate_t_shares_its_chi_square(key, dtype):
    """Coordinates are uncorrelated but not independent: their squares correlate.

    The correlation of the log squares is psi'(df/2) / (psi'(1/2) + psi'(df/2)) = 0.159 for df = 3;
    the standard error from 20,000 draws is 0.007, an eleventh of the distance to either value.
    """
    draws = np.asarray(MultivariateTBase(3.0).sample(key, (20_000, 2), dtype), float)
    independent = np.asarray(StudentTBase(3.0).sample(key, (20_000, 2), dtype), float)
    assert np.corrcoef(np.log(draws**2).T)[0, 1] > 0.08
    assert abs(np.corrcoef(np.log(independent**2).T)[0, 1]) < 0.08


def test_sobol_points_of_the_multivariate_t_have_its_moments():
    base = MultivariateTBase(9.0)
    uniform = scipy.stats.qmc.Sobol(base.num_uniforms(2), rng=1).random(4096)
    noise = base.from_uniform(np.clip(uniform, 1e-12, 1 - 1e-12))
    np.testing.assert_allclose(np.cov(noise.T), base.variance * np.eye(2), atol=0.05)


@pytest.mark.parametrize("family", FAMILIES, ids=names)
@pytest.mark.float64_only
def test_densities_integrate_to_one(family):
    if isinstance(family, curvi.LowRank):
        family = curvi.LowRank(1)
    if isinstance(family, curvi.Chain):
        family = curvi.Chain(2, 1)
    params = family.init(jnp.asarray([0.3, -0.2]), 0.8)
    log_prob = jax.jit(lambda z: family.log_prob(params, z))
    edge = 60.0
    grid = np.sinh(np.linspace(-np.arcsinh(edge), np.arcsinh(edge), 401))
    points = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1)
    density = np.exp(np.asarray(jax.vmap(jax.vmap(log_prob))(jnp.asarray(points))))
    mass = scipy.integrate.trapezoid(scipy.integrate.trapezoid(density, grid, axis=0), grid)
    np.testing.assert_allclose(mass, 1, atol=2e-3)


@pytest.mark.parametrize("family", FAMILIES, ids=names)
def test_the_metric_is_symmetric_positive_and_inverted_by_solve(family, key, dtype):
    params = random_params(family, key, dtype)
    metric = family.metric(params)
    flat, unravel = ravel_pytree(params)
    basis = jnp.eye(flat.shape[0], dtype=dtype)

    def as_matrix(fn):
        rows = jax.jit(jax.vmap(lambda v: ravel_pytree(fn(unravel(v)))[0]))(basis)
        return np.asarray(rows, float)

    applied, solved = as_matrix(metric.apply), as_matrix(metric.solve)
    scale = np.abs(applied).max()
    np.testing.assert_allclose(applied, applied.T, atol=tolerance(dtype)["rtol"] * scale)
    atol = 1e-2 if dtype == jnp.float32 else 1e-7
    np.testing.assert_allclose(applied @ solved, np.eye(len(flat)), atol=atol)
    assert np.linalg.eigvalsh(applied + applied.T).min() > 0


@pytest.mark.parametrize(
    "family", [curvi.MeanField(), curvi.FullRank(), curvi.Chain(4, 1), curvi.Chain(2, 2)], ids=str
)
@pytest.mark.float64_only
def test_the_metric_is_the_fisher_information(family, key):
    """Hessian of KL(q_theta0 || q_theta) in theta at theta0, on the coordinates that q uses."""
    params = random_params(family, key, jnp.float64)
    flat, unravel = ravel_pytree(params)
    covariance0, mean0 = family.covariance(params), params.mean

    def divergence(vector):
        other = unravel(vector)
        precision = jnp.linalg.inv(family.covariance(other))
        shift = other.mean - mean0
        trace = jnp.trace(precision @ covariance0) + shift @ precision @ shift
        return 0.5 * trace + family.scale.log_det(other.scale_params)

    fisher = jax.jit(jax.hessian(divergence))(flat)
    metric = family.metric(params)

    def used(vector):
        return ravel_pytree(family.project(params, unravel(vector)))[0]

    basis = jnp.eye(flat.shape[0])
    apply = jax.vmap(lambda v: used(ravel_pytree(metric.apply(unravel(used(v))))[0]))
    applied = jax.jit(apply)(basis)
    np.testing.assert_allclose(applied, fisher, rtol=1e-7, atol=1e-8)


@lru_cache
def projections(rank, dtype):
    """Compiled once per rank: a gauge direction projected, and another tangent, once and twice."""
    family = curvi.LowRank(rank)

    @jax.jit
    def run(key):
        params = random_params(family, key, dtype)
        skew = jax.random.normal(jax.random.fold_in(key, 3), (rank, rank), dtype)
        turn = params.scale_params["factor"] @ (skew - skew.T)
        gauge = Params(params.mean, {"log_diagonal": jnp.zeros_like(params.mean), "factor": turn})
        tangent = random_params(family, jax.random.fold_in(key, 4), dtype)
        once = family.project(params, tangent)
        return params, family.project(params, gauge), tangent, once, family.project(params, once)

    return run


@settings(max_examples=25)
@given(rank=st.integers(1, 3), seed=st.integers(0, 2**31 - 1))
def test_the_rotation_gauge_of_low_rank_is_removed(rank, seed):
    dtype = jnp.zeros(()).dtype
    params, removed, tangent, once, twice = projections(rank, dtype)(jax.random.key(seed))
    atol = 1e-9 if dtype == jnp.float64 else 1e-3
    np.testing.assert_allclose(removed.scale_params["factor"], 0, atol=atol)
    np.testing.assert_allclose(once.scale_params["factor"], twice.scale_params["factor"], atol=atol)
    cross = params.scale_params["factor"].T @ once.scale_params["factor"]
    np.testing.assert_allclose(cross, cross.T, atol=atol)
    np.testing.assert_array_equal(once.mean, tangent.mean)


def test_rotating_the_low_rank_factor_leaves_q_unchanged(key, dtype):
    family = curvi.LowRank(2)
    params = random_params(family, key, dtype)
    rotation, _ = jnp.linalg.qr(jax.random.normal(key, (2, 2), dtype))
    turned = Params(
        params.mean, {**params.scale_params, "factor": params.scale_params["factor"] @ rotation}
    )
    z = jnp.ones(DIMENSION, dtype)
    np.testing.assert_allclose(
        family.log_prob(params, z), family.log_prob(turned, z), **tolerance(dtype)
    )


@pytest.mark.parametrize("family", FAMILIES, ids=names)
@pytest.mark.parametrize("xp", [jnp, np], ids=["jax", "numpy"])
def test_the_diagonal_and_the_factor_make_up_the_covariance(family, xp, key, dtype):
    params = random_params(family, key, dtype)
    entries = jax.tree.map(xp.asarray, params.scale_params)
    diagonal, factor = family.scale.diagonal_and_factor(entries, xp)
    assert family.scale.is_diagonal == (factor is None)
    assert diagonal is None or not family.scale.is_full
    total = np.zeros((DIMENSION, DIMENSION))
    for part in (None if diagonal is None else xp.diag(diagonal), factor):
        if part is not None:
            assert isinstance(part, np.ndarray if xp is np else jax.Array)
            total += np.asarray(part, float) @ np.asarray(part, float).T
    scale = dense_scale(family, params, dtype)
    np.testing.assert_allclose(total, scale @ scale.T, **tolerance(dtype))


@pytest.mark.parametrize("family", [curvi.LowRank(2), LocationScale(Laplace(), "full")], ids=str)
def test_draws_are_the_transformed_noise_of_the_base(family, key, dtype):
    params = random_params(family, key, dtype)
    noise = family.base.sample(key, (3, family.num_noise(DIMENSION)), dtype)
    expected = jnp.stack([family.transform(params, epsilon) for epsilon in noise])
    np.testing.assert_allclose(family.sample(params, key, 3), expected, **tolerance(dtype))


@pytest.mark.parametrize("family", FAMILIES, ids=names)
@pytest.mark.float64_only
def test_the_repr_of_a_family_can_be_evaluated(family):
    assert eval(repr(family), vars(curvi.families).copy()) == family  # noqa: S307


@each_copy
@pytest.mark.parametrize("family", FAMILIES, ids=names)
@pytest.mark.float64_only
def test_a_copy_of_a_family_is_equal_to_it(family, copied):
    assert copied(family) == family


def test_low_rank_never_makes_a_dense_matrix(dtype):
    family, dimension = curvi.LowRank(3), 500

    def everything(mean, noise):
        params = family.init(mean, 0.1)
        tangent = family.metric(params).solve(family.project(params, params))
        return family.log_prob(params, family.transform(params, noise)), tangent

    jaxpr = jax.make_jaxpr(everything)(jnp.zeros(dimension, dtype), jnp.zeros(503, dtype))
    sizes = [np.prod(v.aval.shape) for eqn in jaxpr.eqns for v in eqn.outvars]
    assert max(sizes) <= dimension * 6


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: curvi.StudentT(2.0), "df > 2"),
        (lambda: curvi.StudentT(float("nan")), "df is nan"),
        (lambda: curvi.StudentT(5.0, covariance="dense"), "choose one of 'diagonal', 'full'"),
        (lambda: curvi.LowRank(0), "positive integer"),
        (lambda: curvi.LowRank(4).init(jnp.zeros(4)), "use a smaller rank, or FullRank"),
        (lambda: LocationScale(Normal(), "sparse"), "choose one of"),
        (lambda: curvi.Chain(0), "length is 0"),
        (lambda: curvi.Chain(3, 2).init(jnp.zeros(4)), "length \\* width coordinates"),
    ],
)
def test_impossible_families_are_refused(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


@pytest.mark.float64_only
def test_a_fractional_rank_is_refused():
    with pytest.raises(InputError, match="positive integer"):
        curvi.LowRank(2.5)
