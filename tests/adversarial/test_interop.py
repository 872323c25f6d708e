"""Models of other libraries, misused: each misuse is refused or warned about, in a sentence."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import curvi
from curvi._core.errors import InputError
from curvi.interop import hessian_free
from curvi.interop._checks import run_checked
from tests.adversarial.outcomes import handled, refused, warned

pytestmark = pytest.mark.float64_only
numpyro = pytest.importorskip("numpyro")
dist = pytest.importorskip("numpyro.distributions")
autoguide = pytest.importorskip("numpyro.infer.autoguide")


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


NUM, KEY = 12, jax.random.key(0)
Y = np.linspace(-1.0, 2.0, NUM)


def subsampled(likelihood, size=NUM, subsample_size=4):
    """A normal mean whose rows are seen through a subsampled plate."""

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", size, subsample_size=subsample_size) as rows:
            likelihood(mu, y, rows)

    return lambda: curvi.from_numpyro(model, jnp.asarray(Y))


def seen(mean, y):
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


PLATES = {
    "rows not indexed": (subsampled(lambda mu, y, rows: seen(mu, y)), "index its data"),
    "one row of all": slow(subsampled(lambda mu, y, rows: seen(mu, y), NUM, 1), "index its data"),
    "always the first": slow(subsampled(lambda mu, y, rows: seen(mu, y[:4])), "index its data"),
    "features not indexed": (
        subsampled(lambda mu, y, rows: seen(mu * y, y[rows])),
        "could not be run",
    ),
    "factor not indexed": (
        subsampled(
            lambda mu, y, rows: numpyro.factor("f", dist.Normal(mu, 1.0).log_prob(y[:1] + y))
        ),
        "could not be run",
    ),
    "NumPy array indexed": (
        subsampled(lambda mu, y, rows: seen(mu, Y[rows])),
        "give its data as JAX arrays",
    ),
}


@pytest.mark.parametrize(("build", "words"), PLATES.values(), ids=PLATES)
def test_rows_that_a_subsampled_plate_does_not_index_are_refused(build, words):
    refused(build, InputError, words)


def observing(likelihood):
    """A model of one positive number, whose data come in through a likelihood."""

    def model(y):
        rate = numpyro.sample("rate", dist.Gamma(3.0, 1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", likelihood(rate), obs=y)

    return model


def bernoulli(rate):
    return dist.Bernoulli(rate / (1 + rate))


def gaussian(rate):
    return dist.Normal(rate, 1.0)


OBSERVED = {
    "a missing number": (
        lambda rate: dist.Normal(rate, 1.0),
        [1.0, np.nan],
        "[1] is nan",
        "Normal",
    ),
    "a negative count": (dist.Poisson, [1, -2, -3], "[1] is -2", "Poisson"),
    "a waiting time of zero": (dist.Exponential, [0.0, 1.0], "[0] is 0.0", "Exponential"),
    "half a count": (dist.Poisson, [1.0, 2.5], "[1] is 2.5", "Poisson"),
    "a coin on its edge": (bernoulli, [2, 0, 1], "[0] is 2", "Bernoulli"),
    "a missing count of unknown range": (
        lambda rate: dist.Binomial(10, rate / (1 + rate)),
        [1.0, np.nan],
        "[1] is nan",
        "Binomial",
    ),
}
POSSIBLE = {
    "a bound that is inferred": (lambda rate: dist.Uniform(-rate, rate), [0.1, -0.2]),
    "what a mask hides": (lambda rate: dist.Poisson(rate).mask(np.array([True, False])), [1, -1]),
    "counts as floats": (dist.Poisson, [1.0, 3.0]),
}


@pytest.mark.parametrize("name", OBSERVED)
def test_an_observation_outside_its_support_is_named(name):
    likelihood, y, *words = OBSERVED[name]
    refused(
        lambda: curvi.from_numpyro(observing(likelihood), np.array(y)),
        InputError,
        "observed site 'y': entry",
        "outside the support",
        *words,
    )


@pytest.mark.parametrize("name", POSSIBLE)
def test_an_observation_that_is_possible_is_taken(name):
    likelihood, y = POSSIBLE[name]
    handled(
        lambda: curvi.from_numpyro(observing(likelihood), jnp.asarray(y)),
        lambda target: target.dimension == 1,
    )


ARGUMENTS = {
    "a count beyond 32 bits": (np.array([3, 2**40]), ("args[0][1] is 1099511627776", "int32")),
    "a masked count": (np.ma.MaskedArray([3, 4], [0, 1]), ("args[0] is a masked array",)),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_a_model_that_jax_would_misread_are_refused(name):
    y, words = ARGUMENTS[name]
    with jax.enable_x64(False):
        refused(lambda: curvi.from_numpyro(observing(dist.Poisson), y), InputError, *words)


def test_a_plate_longer_than_its_data_is_warned_about():
    build = subsampled(lambda mu, y, rows: seen(mu, y[rows]), NUM + 3)
    warned(build, UserWarning, "beyond the end of an array", "size 12", "plates")


@pytest.mark.slow
def test_an_index_beyond_a_group_of_effects_is_warned_about():
    def model(y, group):
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([3]))
        seen(effect[group], y)

    group = jnp.arange(NUM) % 4
    warned(lambda: curvi.from_numpyro(model, Y, group), UserWarning, "beyond the end", "size 3")
    handled(lambda: curvi.from_numpyro(model, Y, group % 3), lambda target: target.dimension == 3)


def test_an_index_check_runs_what_it_cannot_look_into():
    def odd(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    handled(lambda: run_checked(lambda: odd(jnp.zeros(2)), numpyro), lambda found: not found.any())


def mean_model(y=Y):
    seen(numpyro.sample("mu", dist.Normal(0.0, 1.0)), y)


def other_model(y=Y):
    seen(numpyro.sample("other", dist.Normal(0.0, 1.0).expand([3]))[0], y)


@pytest.fixture(scope="module")
def target():
    return curvi.from_numpyro(mean_model)


POSITIONS = {
    "another name": {"other": jnp.zeros(())},
    "another shape": {"mu": jnp.zeros(3)},
    "a name more": {"mu": jnp.zeros(()), "other": jnp.zeros(())},
    "no dictionary": jnp.zeros(1),
}


@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
def test_a_position_of_other_sites_is_refused(target, position):
    refused(lambda: curvi.fit(target, position), InputError, "mu ()")


def svi(guide=None, **options):
    return curvi.SVI(mean_model, guide or autoguide.AutoNormal(mean_model), **options)


@pytest.fixture(scope="module")
def other_run():
    fitted = curvi.SVI(other_model, autoguide.AutoNormal(other_model))
    return fitted.run(KEY, 50, progress_bar=False)


def run(*arguments, guide=None, **options):
    return lambda: svi(guide).run(*arguments, progress_bar=False, **options)


REFUSED = {
    "class of a guide": (lambda: svi(autoguide.AutoNormal), "the class AutoNormal"),
    "function as a guide": (lambda: svi(mean_model), "guide is function"),
    "class of a method": (lambda: svi(optim=curvi.TrustRegion), "the class TrustRegion"),
    "function as a loss": (lambda: svi(loss=abs), "ELBO"),
    "no model": (
        lambda: curvi.SVI(None, autoguide.AutoNormal(mean_model)).run(KEY, 5),
        "give a NumPyro model",
    ),
    "text for steps": (run(KEY, "5"), "num_steps is '5'"),
    "seed for a key": (run(0, 5), "rng_key", "jax.random.key(0)"),
    "no key": (run(None, 5), "rng_key"),
    "several keys": (run(jax.random.split(KEY, 3), 5), "rng_key", "(3,)"),
    "text for a state": (run(KEY, 5, init_state="x"), "init_state is a str"),
    "number for parameters": (lambda: svi().get_params(3), "svi_state is a int"),
}


@pytest.mark.parametrize(("call", "words"), [(c, w) for c, *w in REFUSED.values()], ids=REFUSED)
def test_a_misused_svi_is_refused(call, words):
    refused(call, InputError, *words)


@pytest.mark.slow
def test_the_run_or_the_guide_of_another_model_is_refused(other_run):
    refused(run(KEY, 5, init_state=other_run), InputError, "SVIRunResult", "run.state")
    refused(run(KEY, 5, init_state=other_run.state), InputError, "other (3,)", "mu ()")
    refused(lambda: svi().get_params(other_run.state), InputError, "has not been set up")
    refused(run(KEY, 5, guide=autoguide.AutoNormal(other_model)), InputError, "other (3,)")


@pytest.mark.parametrize("name", ["init", "update", "evaluate", "stable_update"])
def test_single_steps_of_svi_are_refused(name):
    refused(lambda: getattr(svi(), name), AttributeError, "svi.run(")


def test_what_svi_does_not_use_is_warned_about():
    warned(lambda: svi(optim=numpyro.optim.Adam(0.1)), UserWarning, "Adam")
    loss = numpyro.infer.Trace_ELBO(num_particles=8)
    warned(lambda: svi(loss=loss), UserWarning, "num_particles=8")


def square(params):
    return jnp.sum((params - 3.0) ** 2)


PARAMS = jnp.zeros(2)
OPTIMISER = hessian_free()
GRADIENT = jnp.full(2, -6.0)


def update(gradient=GRADIENT, state=None, params=PARAMS, **options):
    state = OPTIMISER.init(PARAMS) if state is None else state
    return lambda: OPTIMISER.update(gradient, state, params, **options)


OPTAX = {
    "no loss": (update(), "value_fn=loss"),
    "no parameters": (update(params=None, value_fn=square), "value_fn=loss"),
    "value for a loss": (update(value_fn=3.0), "value_fn is a float"),
    "vector loss": (update(value_fn=lambda p: p), "shape (2,)"),
    "loss with auxiliary values": (update(value_fn=lambda p: (square(p), p)), "auxiliary"),
    "gradient of other shape": (update(jnp.ones(3), value_fn=square), "(3,)"),
    "gradient of other structure": (update({"a": GRADIENT}, value_fn=square), "{'a': (2,)}"),
    "state of adam": (
        update(state=optax.adam(1.0).init(PARAMS), value_fn=square),
        "state is a tuple",
    ),
    "integers": (lambda: OPTIMISER.init(jnp.zeros(2, int)), "floating-point"),
    "no numbers": (lambda: OPTIMISER.init({}), "at least one"),
    "two precisions": (
        lambda: OPTIMISER.init({"a": jnp.zeros(2), "b": jnp.zeros(2, jnp.float16)}),
        "one precision",
    ),
    "no steps": (lambda: hessian_free(cg_steps=0), "cg_steps is 0"),
    "damping that is no number": (lambda: hessian_free(initial_damping=np.nan), "is nan"),
}


@pytest.mark.parametrize(("call", "words"), OPTAX.values(), ids=OPTAX)
def test_a_misused_optax_transformation_is_refused(call, words):
    refused(call, InputError, words)


def test_inside_jit_a_gradient_moves_the_parameters_and_one_that_is_not_finite_does_not():
    @jax.jit
    def step(gradient):
        state = OPTIMISER.init(PARAMS)
        return OPTIMISER.update(gradient, state, PARAMS, value_fn=square)[0]

    handled(lambda: step(GRADIENT), lambda found: np.allclose(found, 2.0))
    handled(lambda: step(GRADIENT * jnp.nan), lambda found: (found == 0).all())


@pytest.mark.slow
def test_an_index_beyond_a_pymc_variable_is_warned_about():
    pm = pytest.importorskip("pymc")

    def build(group):
        with pm.Model() as model:
            effect = pm.Normal("effect", shape=3)
            pm.Normal("y", effect[group], 1.0, observed=Y)
        return curvi.from_pymc(model)

    group = np.arange(NUM) % 4
    warned(lambda: build(group), UserWarning, "beyond the end of an array", "size 3")
    handled(lambda: build(group % 3), lambda target: target.dimension == 3)


@pytest.mark.slow
def test_a_pymc_minibatch_is_refused():
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1.0, observed=pm.Minibatch(Y, batch_size=4), total_size=NUM)
    refused(lambda: curvi.from_pymc(model), InputError, "whole arrays", "minibatches")


def fork():
    jnp.zeros(2).block_until_ready()
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_after_jax_has_started_is_warned_about():
    assert warned(fork, RuntimeWarning, "os.fork() was called", "deadlock") == 0


@pytest.mark.slow
def test_the_default_processes_of_joblib_fit_after_a_fit():
    joblib = pytest.importorskip("joblib")
    from sklearn.model_selection import cross_val_score

    def fitted_mean(centre):
        def log_density(x):
            return -0.5 * jnp.sum((x - centre) ** 2)

        options = {"max_steps": 20, "execution": "eager", "progress": False}
        return np.asarray(curvi.fit(log_density, np.zeros(2, np.float32), **options).mean)

    np.testing.assert_allclose(fitted_mean(1.0), 1.0, atol=1e-3)
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(fitted_mean)(c) for c in (1.0, 2.0))
    np.testing.assert_allclose(found, [[1.0, 1.0], [2.0, 2.0]], atol=1e-3)
    X = np.random.default_rng(0).normal(size=(60, 3))
    model, y = curvi.BayesianLogisticRegression(), (X[:, 0] > 0).astype(int)
    scores = cross_val_score(model, X, y, cv=3, n_jobs=2)
    np.testing.assert_array_equal(scores, cross_val_score(model, X, y, cv=3))
