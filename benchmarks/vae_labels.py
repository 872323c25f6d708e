"""MNIST with few labels: the semi-supervised auto-encoder against logistic regression."""

from __future__ import annotations

import time

import numpy as np

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


def accuracy(X, y, X_test, y_test, *, budget, **options):
    """Accuracies of both on the test rows, and seconds of training with compilation."""
    began = time.perf_counter()
    model = curvi.SemiSupervisedVAE(random_state=0, time_budget=budget, **options).fit(X, y)
    seconds = time.perf_counter() - began
    return {
        "semi_supervised": float(model.score(X_test, y_test)),
        "logistic": logistic_accuracy(X, y, X_test, y_test),
        "seconds": seconds,
        "epochs": float(model.history_["epoch"][-1]),
    }
