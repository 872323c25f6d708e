"""The estimators keep scikit-learn's contract, and survive being saved and copied by users."""

import copy
import pickle
import warnings

import jax
import numpy as np
import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

import curvi
from tests.copies import each_copy

pytestmark = pytest.mark.float64_only  # scikit-learn's data are float64

# The checks draw normal features: a Bernoulli likelihood would refuse them.
VAE = curvi.VAE(
    latent=1, hidden=(2,), likelihood="gaussian", method="adagrad", max_epochs=1,
    validation_fraction=0.0,
)  # fmt: skip
CLASSIFIER = curvi.SemiSupervisedVAE(latent=1, hidden=(4,), likelihood="gaussian", max_epochs=200)
NOT_APPLICABLE = {
    "check_classifiers_classes": "its binary labels are -1 and 1, and -1 marks a missing label",
}
# Each fits tables of several shapes, and every shape is compiled.
COSTLY = {
    "check_estimators_dtypes", "check_fit_score_takes_y", "check_estimators_overwrite_params",
    "check_dont_overwrite_parameters", "check_n_features_in_after_fitting",
    "check_positive_only_tag_during_fit", "check_dtype_object", "check_pipeline_consistency",
    "check_estimators_nan_inf", "check_transformer_data_not_an_array",
    "check_classifier_data_not_an_array", "check_fit2d_1feature", "check_fit_idempotent",
    "check_fit_check_is_fitted", "check_n_features_in", "check_classifiers_train",
    "check_classifiers_classes", "check_f_contiguous_array_estimator", "check_estimators_pickle",
    "check_supervised_y_2d",
}  # fmt: skip


def checks():
    for estimator in (VAE, CLASSIFIER):
        found = estimator_checks_generator(
            estimator, expected_failed_checks=NOT_APPLICABLE, mark="skip"
        )
        for number, (_, check) in enumerate(found):
            name = getattr(check, "func", check).__name__
            marks = [pytest.mark.slow] if name in COSTLY else []
            label = f"{type(estimator).__name__}-{number}-{name}"
            yield pytest.param(estimator, check, id=label, marks=marks)


@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_the_estimators_pass_the_checks_of_scikit_learn(estimator, check):
    with warnings.catch_warnings(), jax.numpy_dtype_promotion("standard"):
        warnings.simplefilter("ignore")  # scikit-learn fits nonsense on purpose
        check(copy.deepcopy(estimator))


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).random((60, 8))


@pytest.fixture(scope="module")
def auto_encoder(images):
    options = {"latent": 2, "hidden": (4,), "max_epochs": 2, "random_state": 0}
    with jax.numpy_dtype_promotion("standard"):
        return curvi.VAE(**options, method="adagrad").fit(images)


@pytest.fixture(scope="module")
def classifier(images):
    options = {"latent": 2, "hidden": (4,), "max_epochs": 2, "batch_size": 60, "random_state": 0}
    labels = np.where(images[:, 0] < 0.5, "dark", "light").astype(object)
    labels[20:] = None
    with jax.numpy_dtype_promotion("standard"):
        return curvi.SemiSupervisedVAE(**options).fit(images, labels)


@each_copy
def test_a_fitted_auto_encoder_is_the_same_after_a_round_trip(auto_encoder, images, copied):
    again = copied(auto_encoder)
    for name in ("transform", "reconstruct", "denoise", "elbo", "score"):
        before, after = getattr(auto_encoder, name)(images), getattr(again, name)(images)
        np.testing.assert_array_equal(before, after)
    assert again.get_params() == auto_encoder.get_params()
    assert (again.elbo_, again.outcome_) == (auto_encoder.elbo_, auto_encoder.outcome_)


@each_copy
def test_a_fitted_classifier_is_the_same_after_a_round_trip(classifier, images, copied):
    again = copied(classifier)
    np.testing.assert_array_equal(classifier.predict(images), again.predict(images))
    np.testing.assert_array_equal(classifier.predict_proba(images), again.predict_proba(images))
    labels = classifier.classes_[(images[:, 0] >= 0.5).astype(int)]
    assert again.score(images, labels) == classifier.score(images, labels)


def test_a_round_trip_keeps_double_precision_where_jax_computes_in_single(auto_encoder, images):
    saved = pickle.dumps(auto_encoder)
    with jax.enable_x64(False):
        again = pickle.loads(saved)  # noqa: S301
        assert {leaf.dtype for leaf in jax.tree.leaves(again.params_)} == {np.dtype(np.float64)}
        np.testing.assert_array_equal(again.transform(images), auto_encoder.transform(images))
