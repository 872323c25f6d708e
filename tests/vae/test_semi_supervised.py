"""The semi-supervised auto-encoder as a classifier."""

import jax
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits

import curvi
from curvi.vae._semi_supervised import _is_missing


def two_groups():
    generator = np.random.default_rng(0)
    group = np.arange(60) % 2
    chance = np.where(group == 1, 0.9, 0.1)[:, None]
    return (generator.random((60, 8)) < chance).astype(np.float64), group


CLASSES = {"latent": 2, "hidden": (4,), "max_epochs": 40, "batch_size": 60, "random_state": 0}


@pytest.mark.float64_only
def test_names_of_classes_may_be_missing():
    X, group = two_groups()
    names = np.asarray(["low", "high"])[group]
    y = [name if row < 20 else -1 for row, name in enumerate(names)]  # NumPy makes it "-1"
    with jax.numpy_dtype_promotion("standard"):
        model = curvi.SemiSupervisedVAE(**CLASSES).fit(X, y)
    assert model.classes_.tolist() == ["high", "low"]
    assert model.outcome_.name == "BUDGET"
    assert np.isfinite(model.elbo_)
    assert model.score(X, names) > 0.8


@pytest.mark.float64_only
@pytest.mark.parametrize(
    "labels",
    [
        ["a", "-1", "b"],
        np.asarray(["a", -1, "b"], object),
        np.asarray(["a", None, "b"], object),
        np.asarray(["a", np.nan, "b"], object),
        np.asarray([b"a", b"-1", b"b"]),
        [0.0, np.nan, 1.0],
        [0, -1, 1],
    ],
)
def test_every_way_to_leave_a_label_out_is_understood(labels):
    found = [_is_missing(label) for label in np.asarray(labels).tolist()]
    assert found == [False, True, False]


@pytest.mark.float64_only
def test_labels_of_one_class_or_several_kinds_are_refused():
    X, _ = two_groups()
    for y in (np.zeros(60), np.asarray([(1, 2), "b", None] * 20, object)):
        with pytest.raises(curvi.InputError, match="y "):
            curvi.SemiSupervisedVAE(**CLASSES).fit(X, y)


@pytest.mark.float64_only
def test_a_classifier_whose_training_breaks_says_so():
    X, group = two_groups()
    method = curvi.FirstOrder(optax.sgd(1e200))
    with pytest.raises(curvi.NumericalError):
        curvi.SemiSupervisedVAE(**{**CLASSES, "max_epochs": 100}, method=method).fit(X, group)


@pytest.mark.float64_only
@pytest.mark.parametrize(
    "options",
    [{"hidden": ()}, {"hidden": "64"}, {"activation": "step"}, {"batch_size": 0}, {"max_epochs": 0},
     {"decoder_l2": -1.0}],
)  # fmt: skip
def test_bad_options_of_the_classifier_are_refused(options):
    with pytest.raises(curvi.InputError, match=next(iter(options))):
        curvi.SemiSupervisedVAE(**{**CLASSES, **options}).fit(*two_groups())


@pytest.mark.slow
@pytest.mark.float64_only
def test_unlabelled_rows_help_the_classifier():
    """100 labels of 1,500: the generative model beats a logistic regression on the 100."""
    from sklearn.linear_model import LogisticRegression

    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    labels = np.full(1500, -1)
    labels[:100] = y[:100]
    with jax.numpy_dtype_promotion("standard"):
        model = curvi.SemiSupervisedVAE(latent=6, hidden=(50,), max_epochs=150, random_state=0).fit(
            X[:1500], labels
        )
    ours = model.score(X[1500:], y[1500:])
    theirs = LogisticRegression(max_iter=1000).fit(X[:100], y[:100]).score(X[1500:], y[1500:])
    np.testing.assert_allclose(model.predict_proba(X[1500:]).sum(axis=1), 1, rtol=1e-5)
    assert ours > theirs, (ours, theirs)
