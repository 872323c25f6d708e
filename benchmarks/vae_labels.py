"""MNIST with few labels: the semi-supervised auto-encoder against logistic regression.

``python -m benchmarks.vae_labels`` compares on the last 5,000 training images, not on test images.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.pipeline import make_pipeline

import curvi

PER_CLASS = 100


def few_labels(y, *, seed):
    """``y`` with -1 everywhere but at 100 random rows of each class."""
    generator = np.random.default_rng(seed)
    kept = np.full_like(y, -1)
    for label in np.unique(y):
        chosen = generator.choice(np.flatnonzero(y == label), PER_CLASS, replace=False)
        kept[chosen] = label
    return kept


def logistic_accuracy(X, y, X_test, y_test):
    """Of an L2-penalised logistic regression on the labelled rows, its weight cross-validated."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    known = y >= 0
    search = GridSearchCV(LogisticRegression(max_iter=300), {"C": [0.03, 0.1, 0.3, 1.0]}, cv=5)
    return float(search.fit(X[known], y[known]).score(X_test, y_test))


def stacked(*, epochs=(10, 12)):
    """An auto-encoder trained by curvature on all rows, and the classifier on its codes."""
    return make_pipeline(
        curvi.VAE(latent=50, max_epochs=epochs[0], random_state=0),
        curvi.SemiSupervisedVAE(likelihood="gaussian", max_epochs=epochs[1], random_state=0),
    )


def accuracies(X, y, X_test, y_test, *, epochs=(10, 12), budget=60.0):
    """Accuracies on the test rows, and seconds of training with compilation."""
    models = {
        "stacked": stacked(epochs=epochs),
        "pixels": curvi.SemiSupervisedVAE(random_state=0, max_epochs=1000, time_budget=budget),
    }
    rows = {"logistic": {"accuracy": logistic_accuracy(X, y, X_test, y_test)}}
    for name, model in models.items():
        began = time.perf_counter()
        model.fit(X, y)
        seconds = time.perf_counter() - began
        rows[name] = {"accuracy": float(model.score(X_test, y_test)), "seconds": seconds}
    return rows


if __name__ == "__main__":  # on the last 5,000 training images, as settings are chosen
    images, labels = curvi.datasets.load("mnist").train
    kept = few_labels(labels[:-5000], seed=0)
    print(accuracies(images[:-5000], kept, images[-5000:], labels[-5000:]))
