"""Auto-encoders on hostile rows and options: a sentence, a verdict, or the right answer."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import optax
import pytest
from sklearn.exceptions import NotFittedError

import curvi
from curvi._core.errors import (
    InputError,
    MemoryBudgetError,
    NotConvergedWarning,
    NumericalError,
    Outcome,
)
from curvi.vae import Bernoulli, Gaussian
from curvi.vae._training import num_held_out
from tests.adversarial.outcomes import refused, warned

pytestmark = pytest.mark.float64_only

CODES = np.random.default_rng(0).normal(size=(40, 2))
REAL = CODES @ np.array([[1.0, -1.0, 0.5, 0.2], [0.3, 1.0, -1.0, 0.7]])
BINARY = (REAL > 0).astype(float)
LABELS = np.where(np.arange(40) % 2, (CODES[:, 0] > 0).astype(int), -1)
TINY = {"latent": 2, "hidden": (4,), "max_epochs": 3, "random_state": 0}
WILD = curvi.FirstOrder(optax.sgd(1e6))
WILDER = curvi.FirstOrder(optax.sgd(1e200))


def vae(**options):
    return curvi.VAE(**{**TINY, "method": "adagrad", **options})


def semi(**options):
    return curvi.SemiSupervisedVAE(**{**TINY, **options})


@pytest.fixture(scope="module")
def model():
    return vae().fit(BINARY)


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(lambda: vae(time_budget=1e-9).fit(BINARY), id="vae"),
        pytest.param(lambda: semi(time_budget=1e-9).fit(BINARY, LABELS), id="labels"),
    ],
)
def test_training_that_ran_out_of_time_says_so(cut):
    fitted = warned(cut, NotConvergedWarning, "time_budget ran out after 0 steps")
    assert fitted.outcome_ is Outcome.BUDGET
    assert np.isfinite(fitted.elbo_)
    assert fitted.history_["step"].tolist() == [0]


def test_the_last_epoch_is_an_ordinary_end_and_named_by_its_option(model):
    assert model.outcome_ is Outcome.BUDGET
    assert "max_epochs" in model.message_
    assert not {"max_steps", "tolerance"} & set(model.message_.replace(",", " ").split())


DIVERGING = {
    "long steps": lambda: vae(method=WILD, validation_fraction=0.1).fit(BINARY),
    "labels": lambda: semi(method=WILD).fit(BINARY, LABELS),
    "first weights": lambda: vae(init_scale=1e3).fit(BINARY),
}


@pytest.mark.parametrize("case", DIVERGING)
def test_training_that_diverged_says_so(case):
    fitted = warned(DIVERGING[case], NotConvergedWarning, "diverged", "ELBO")
    assert fitted.outcome_ is Outcome.DIVERGED
    assert fitted.message_.startswith("Training diverged")
    held_out = case == "long steps"
    assert np.isfinite(fitted.history_["validation_elbo"]).all() == held_out


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-5, 1e5])
def test_rows_of_unusual_size_are_learned_or_warned_about(size):
    rows = np.repeat(size * REAL, 5, axis=0)
    model = curvi.VAE(**{**TINY, "max_epochs": 20}, likelihood="gaussian")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(rows)
    trivial = Gaussian("pixel", size).trivial_elbo(rows)
    assert model.elbo_ > trivial - 4 or caught[0].category is NotConvergedWarning


def test_training_without_a_finite_bound_raises_and_carries_what_there_is():
    with pytest.raises(NumericalError) as caught:
        vae(method=WILDER, likelihood="gaussian").fit(REAL)
    assert caught.value.result.steps > 0


@pytest.mark.parametrize(
    "likelihood", [Bernoulli(), Gaussian("pixel"), Gaussian("one"), Gaussian(0.5)]
)
def test_the_trivial_bound_is_the_best_constant_decoder(likelihood):
    rows = BINARY if isinstance(likelihood, Bernoulli) else REAL
    mean = rows.mean(axis=0)
    outputs = likelihood.outputs_for(mean)
    if isinstance(likelihood, Gaussian) and isinstance(likelihood.variance, str):
        spread = rows.var(axis=0)
        log_variance = np.log(spread if likelihood.variance == "pixel" else spread.mean())
        outputs = (outputs, np.broadcast_to(log_variance, mean.shape))
    shaped = [np.broadcast_to(part, rows.shape) for part in jax.tree.leaves(outputs)]
    logs = likelihood.log_prob(tuple(shaped) if len(shaped) > 1 else shaped[0], rows)
    np.testing.assert_allclose(likelihood.trivial_elbo(rows), np.mean(logs), rtol=1e-6)


@pytest.mark.parametrize("size", [1e-30, 1e30, 1e200])
def test_rows_far_from_unit_size_are_refused(size):
    for call in (
        lambda: vae(likelihood="gaussian").fit(size * REAL),
        lambda: semi(likelihood="gaussian").fit(size * REAL, LABELS),
    ):
        refused(call, InputError, "sd", "StandardScaler")


@pytest.mark.parametrize(
    ("fraction", "rows", "held"),
    [(0.1, 40, 4), (0.01, 40, 1), (0.5, 4, 2), (0.0, 40, 0), (0.3, 10, 3), ("auto", 400, 40)],
)
def test_a_fraction_held_out_is_honoured_for_any_number_of_rows(fraction, rows, held):
    assert num_held_out(fraction, rows) == held


def test_by_default_too_few_rows_hold_nothing_out(model):
    assert np.isnan(model.history_["validation_elbo"]).all()


COUNT = [-1, 0, 2.5, True, "a", np.inf, np.ones(2)]
NUMBER = [-1, 0, np.nan, np.inf, True, "a", np.ones(2)]
SHARED = {
    "latent": COUNT,
    "hidden": [5, (), "ab", (0,), (2.5,), np.ones(2), None],
    "activation": [None, "relu6", np.ones(2)],
    "likelihood": [None, "poisson", np.ones(2)],
    "variance": [None, "maybe", *NUMBER],
    "decoder_l2": [-1, np.nan, np.inf, True, "a", np.ones(2)],
    "batch_size": COUNT,
    "max_epochs": COUNT,
    "time_budget": NUMBER,
    "random_state": [-1, 2**70, "a", 1.5, True, np.random.default_rng(0)],
    "verbose": [-1, 0.5, "a", None],
}
WRONG = [
    *((vae, name, values) for name, values in SHARED.items()),
    *((semi, name, values) for name, values in SHARED.items()),
    (vae, "num_draws", COUNT),
    (vae, "init_scale", NUMBER),
    (vae, "patience", COUNT),
    (vae, "method", [None, "sgd", 3, np.ones(2)]),
    (vae, "validation_fraction", [-0.1, 1, 0.99, np.nan, True, "a", None, np.ones(2)]),
    (semi, "label_weight", [*NUMBER, None]),
    (semi, "method", ["kfac", 3]),
]


@pytest.mark.parametrize(("make", "option", "values"), WRONG)
def test_a_wrong_option_is_named(make, option, values):
    for value in values:
        fit, y = make(**{option: value}).fit, LABELS
        refused(lambda: fit(BINARY, y), InputError, option)  # noqa: B023


LARGE = {
    "layers": lambda model: vae(hidden=(10**6, 10**6)).fit(BINARY),
    "layers of a classifier": lambda model: semi(hidden=(10**6, 10**6)).fit(BINARY, LABELS),
    "draws": lambda model: vae(num_draws=10**10).fit(BINARY),
    "images": lambda model: model.sample(10**11),
    "net": lambda model: model.manifold(10**6),
    "elbo": lambda model: model.elbo(BINARY, num_draws=10**10),
    "likelihood": lambda model: model.log_likelihood(BINARY, num_draws=10**10),
    "report": lambda model: model.draw_report(BINARY, num_draws=10**10),
}


@pytest.mark.parametrize("case", LARGE)
def test_what_would_not_fit_into_memory_is_refused_before_it_is_made(case, model):
    refused(lambda: LARGE[case](model), MemoryBudgetError, "memory budget")


def test_a_batch_of_more_rows_than_there_are_is_all_of_them():
    one, other = (vae(batch_size=size).fit(BINARY) for size in (10**9, 40))
    assert one.elbo_ == other.elbo_


LABELLINGS = {
    "several kinds": (["a", 1, None, np.nan] * 10, "several kinds"),
    "no order": ([object() for _ in range(40)], "order"),
    "none": (np.full(40, -1), "no class"),
    "one class": (np.zeros(40), "1 class"),
    "too few": (LABELS[:5], "5 labels"),
}


@pytest.mark.parametrize("case", LABELLINGS)
def test_wrong_labels_are_refused_and_leave_nothing_fitted(case):
    labels, words = LABELLINGS[case]
    classifier = semi()
    refused(lambda: classifier.fit(BINARY, labels), InputError, words)
    refused(lambda: classifier.predict(BINARY), NotFittedError, "fit")


@pytest.mark.parametrize(
    ("make", "method", "arguments"),
    [
        *((vae, name, (BINARY,)) for name in ("transform", "reconstruct", "denoise", "impute")),
        *((vae, name, (BINARY,)) for name in ("elbo", "log_likelihood", "score", "draw_report")),
        (vae, "plot_reconstructions", (BINARY,)),
        (vae, "inverse_transform", (CODES,)),
        (vae, "sample", (3,)),
        *((vae, name, ()) for name in ("manifold", "plot_manifold", "plot_history")),
        *((semi, name, (BINARY,)) for name in ("predict", "predict_proba")),
        (semi, "score", (BINARY, LABELS)),
    ],
)
def test_every_method_needs_a_fit(make, method, arguments):
    refused(lambda: getattr(make(), method)(*arguments), NotFittedError, "fit")


USES = [
    ("sample", (3, "a"), "seed"),
    ("sample", (3, -1), "seed"),
    ("sample", ("a",), "num_draws"),
    ("manifold", (0,), "grid"),
    ("elbo", (BINARY, "a"), "num_draws"),
    ("denoise", (BINARY, 0), "num_draws"),
    ("plot_reconstructions", (BINARY, None, -1), "count"),
    ("inverse_transform", (np.full((2, 2), np.nan),), "Z"),
]


@pytest.mark.parametrize(("method", "arguments", "word"), USES)
def test_a_wrong_argument_is_named(method, arguments, word, model):
    refused(lambda: getattr(model, method)(*arguments), InputError, word)
