"""Degrees of centring: another form is the same posterior, and the one that suits is taken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import curvi
from curvi._core.trees import ravel, usual_promotion

numpyro = pytest.importorskip("numpyro")
dist = numpyro.distributions
pytestmark = pytest.mark.float64_only

CORNER = jnp.asarray([[1.0, 0.0], [0.4, 0.7]])
LAWS = {
    "normal": dist.Normal,
    "cauchy": dist.Cauchy,
    "laplace": dist.Laplace,
    "logistic": dist.Logistic,
    "gumbel": dist.Gumbel,
    "student": lambda m, s: dist.StudentT(3.0, m, s),
    "log": dist.LogNormal,
    "half": lambda m, s: dist.HalfNormal(s),
    "half_cauchy": lambda m, s: dist.HalfCauchy(s),
    "waiting": lambda m, s: dist.Exponential(1 / s),
    "pair": lambda m, s: dist.MultivariateNormal(m * jnp.ones(2), scale_tril=s * CORNER),
    "wide": lambda m, s: dist.Normal(m, s).expand([2]).to_event(1),
}


def _numpyro_model():
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 3):
        total = sum(
            jnp.sum(numpyro.sample(name, law(m, s)).reshape(3, -1)) for name, law in LAWS.items()
        )
    numpyro.sample("y", dist.Normal(total, 2.0), obs=jnp.asarray(1.3))


def _pymc_target():
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        m, s = pm.Normal("m", 0.0, 1.0), pm.HalfNormal("s", 1.0)
        pm.Normal("normal", m, s, shape=3)
        tailed = pm.StudentT("student", nu=3.0, mu=m, sigma=s, shape=3)
        pair = pm.MvNormal("pair", tailed[:2], chol=s * np.asarray(CORNER), shape=(3, 2))
        pm.Normal("y", pair.sum(), 2.0, observed=1.3)
    return curvi.from_pymc(model)


@pytest.mark.parametrize(
    "made", [lambda: curvi.from_numpyro(_numpyro_model), _pymc_target], ids=["numpyro", "pymc"]
)
def test_every_degree_is_the_same_posterior(made, key):
    """log p changes by the log determinant of the move, and the answer does not change at all."""
    target = made()
    forms = target.centring
    draws = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    none = forms.none(target.position)
    degrees = {name: draws.uniform(size=zeros.shape) for name, zeros in none.items()}
    other = forms.target(degrees)
    flat = jnp.asarray(draws.normal(size=target.dimension))

    unravel = target.density.unravel

    def checked(z):
        def moved(z):
            return ravel(forms.moved(unravel(z), none, degrees))

        there = moved(z)
        gained = other.log_prob(there) + jnp.linalg.slogdet(jax.jacfwd(moved)(z))[1]
        again = ravel(forms.moved(unravel(there), degrees, none))
        answers = target.constrain(unravel(z)), other.constrain(unravel(there))
        return again, gained, target.log_prob(z), answers

    with usual_promotion():
        again, gained, plain, (one, two) = jax.jit(checked)(flat)
    np.testing.assert_allclose(again, flat, atol=1e-9)
    np.testing.assert_allclose(gained, plain, rtol=1e-9)
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=1e-8, atol=1e-9)


Y = np.random.default_rng(17).normal(size=4)[:, None] * 1.2 + np.random.default_rng(18).normal(
    size=(4, 20)
)


def _exact():
    """Mean and sd of (mean, spread, effects) by quadrature over mean and spread."""
    level, n = Y.mean(axis=1), Y.shape[1]
    mean, spread = np.meshgrid(np.linspace(-8, 8, 400), np.linspace(1e-3, 10, 800), indexing="ij")
    logs = stats.norm.logpdf(mean, 0, 3) - 0.5 * (spread / 2) ** 2
    for y in level:
        logs = logs + stats.norm.logpdf(y, mean, np.sqrt(spread**2 + 1 / n))
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    precision = n + spread**-2.0
    given = [(n * y + mean / spread**2) / precision for y in level]
    first = np.asarray([np.sum(weights * one) for one in [mean, spread, *given]])
    squares = [mean**2, spread**2, *(one**2 + 1 / precision for one in given)]
    second = np.asarray([np.sum(weights * one) for one in squares])
    return first, np.sqrt(second - first**2)


def _groups(y, by_hand):
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    spread = numpyro.sample("spread", dist.HalfNormal(2.0))
    with numpyro.plate("groups", 4):
        if by_hand:
            noise = numpyro.sample("noise", dist.Normal(0.0, 1.0))
            effect = numpyro.deterministic("effect", mean + spread * noise)
        else:
            effect = numpyro.sample("effect", dist.Normal(mean, spread))
    numpyro.sample("y", dist.Normal(effect[:, None], 1.0), obs=y)


@pytest.mark.parametrize("by_hand", [False, True], ids=["centred", "not centred"])
def test_many_rows_in_few_groups_are_right_in_either_form(by_hand, key):
    """Noise is the harder form here; both give the answer of quadrature, and no warning."""
    target = curvi.from_numpyro(_groups, jnp.asarray(Y), by_hand)
    seed = int(jax.random.randint(key, (), 0, 2**30))
    result = curvi.fit(target, progress=False, seed=seed)
    assert result.warnings == ()
    if not by_hand:
        # The q that the result keeps is one of its own target, whatever form the climb went on in.
        assert any("centred" in rung.name and rung.note == "better" for rung in result.rungs)
        assert sorted(target.position) == ["effect_standardised", "mean", "spread"]
    mean, sd = _exact()
    found = (
        np.concatenate([np.ravel(part[name]) for name in ("mean", "spread", "effect")])
        for part in (result.mean, result.sd)
    )
    error = 5 * result.mc_error + 0.02
    np.testing.assert_allclose((next(found) - mean) / sd, 0.0, atol=error)
    np.testing.assert_allclose(next(found) / sd, 1.0, atol=0.15)
