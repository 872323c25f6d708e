"""Section 4.2: auto-encoders of Frey faces, Olivetti faces and MNIST by four methods.

For every data set: the convergence of the ELBO (CSV and PNG), reconstructions by every method, the
manifold of a two-dimensional code, and denoised and imputed images.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from curvi import datasets
from curvi._core.errors import NotConvergedWarning
from curvi.plots import plot_images, plot_sheet, plot_training
from curvi.reproduction._tables import Row, as_markdown, write_files
from curvi.vae import VAE

METHODS = ("kfac", "hessian_free", "lbfgs", "adagrad")
_HELD_OUT = 0.1


@dataclass(frozen=True)
class Case:
    """A data set with the sizes of the paper."""

    name: str
    latent: int
    hidden: tuple[int, ...]
    likelihood: str
    grid: int
    seconds: float  # of training, for every method


CASES = {
    "frey": Case("frey", 20, (200,), "gaussian", 10, 15.0),
    "olivetti": Case("olivetti", 100, (400,), "gaussian", 10, 15.0),
    "mnist": Case("mnist", 20, (500,), "bernoulli", 20, 30.0),
}


def run(
    dataset: str,
    out: Path,
    *,
    seeds: Sequence[int],
    quick: bool,
    report: Callable[[str], None],
    seconds: float | None = None,
) -> list[Path]:
    """Write the tables and figures of one data set into a folder of its own.

    Convergence is measured for every seed, the pictures show the first. Every method trains for
    the same number of seconds; compilation does not count.
    """
    case = CASES[dataset]
    budget = (5.0 if quick else case.seconds) if seconds is None else seconds
    out = out / dataset
    out.mkdir(parents=True, exist_ok=True)
    train, test, shape = _images(case)
    models: dict[str, VAE] = {}
    history: list[Row] = []
    errors: list[Row] = []
    for seed in seeds:
        for method in METHODS:
            report(f"{dataset}: {method}, seed {seed}")
            model = _fitted(_model(case, method, seed, budget, case.latent), train)
            models.setdefault(method, model)
            head = {"dataset": case.name, "method": method, "seed": seed}
            history += [
                head | {column: float(values[i]) for column, values in model.history_.items()}
                for i in range(len(model.history_["step"]))
            ]
            tested = {
                "test_bound": model.score(test),
                "test_squared_error": float(np.mean((model.reconstruct(test) - test) ** 2)),
                "epochs": float(model.history_["epoch"][-1]),
            }
            errors.append(head | tested)
    histories = {name: model.history_ for name, model in models.items()}
    flat = _fitted(_model(case, "kfac", seeds[0], budget, 2), train)
    files = {
        "_convergence.csv": history,
        "_test.csv": errors,
        ".md": _summary(errors, budget),
        "_convergence.png": plot_training(histories, title=case.name),
        **_pictures(models, test, shape),
        "_manifold.png": plot_sheet(flat.manifold(case.grid), shape),
    }
    named = {case.name + ending: content for ending, content in files.items()}
    return write_files(out, named, dpi=130)


def _images(case: Case) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """Training and held-out images; faces are split at random with a fixed seed."""
    data = datasets.load(case.name)
    X, shape = data.train[0], data.image_shape or (1, data.train[0].shape[1])
    if data.test is not None:
        return X, data.test[0], shape
    order = np.random.default_rng(0).permutation(len(X))
    held = int(_HELD_OUT * len(X))
    return X[order[held:]], X[order[:held]], shape


def _model(case: Case, method: str, seed: int, budget: float, latent: int) -> VAE:
    return VAE(
        latent=latent, hidden=case.hidden, likelihood=case.likelihood, method=method,
        max_epochs=100_000, time_budget=budget, random_state=seed,
    )  # fmt: skip


def _fitted(model: VAE, X: np.ndarray) -> VAE:
    """Fit twice: one epoch to compile, so that the budget of the second goes to training.

    Methods are compared at the end of the time, which is no reason to warn.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "time_budget ran out", NotConvergedWarning)
        clone(model).set_params(max_epochs=1).fit(X)
        return model.fit(X)


def _pictures(models: dict[str, VAE], test: np.ndarray, shape: tuple[int, int]) -> dict[str, Any]:
    """Reconstructions by every method; denoised and imputed images."""
    generator = np.random.default_rng(0)
    shown = test[generator.choice(len(test), 10, replace=False)]
    rebuilt = {name: model.reconstruct(shown) for name, model in models.items()}
    noisy = np.clip(shown + 0.2 * generator.standard_normal(shown.shape), 0, 1)
    noisy = noisy.astype(shown.dtype)
    hidden = np.zeros(shape, bool)
    hidden[:, shape[1] // 2 :] = True
    missing = np.broadcast_to(hidden.ravel(), shown.shape)
    occluded = np.where(missing, 0.5, shown).astype(shown.dtype)
    repaired = {
        "noisy": noisy,
        "denoised": models["kfac"].denoise(noisy),
        "right half hidden": occluded,
        "imputed": models["kfac"].impute(occluded, missing),
    }
    return {
        "_reconstructions.png": plot_images({"original": shown} | rebuilt, shape),
        "_denoise_impute.png": plot_images({"original": shown} | repaired, shape),
    }


def _summary(errors: list[Row], budget: float) -> str:
    """Held-out images by method: medians over seeds."""
    names = {"test_bound": "held-out bound [nats]", "test_squared_error": "squared error",
             "epochs": "epochs"}  # fmt: skip
    lines = []
    for method in METHODS:
        mine = [row for row in errors if row["method"] == method]
        medians = {title: np.median([row[key] for row in mine]) for key, title in names.items()}
        lines.append({"method": method} | {title: f"{v:.4g}" for title, v in medians.items()})
    seeds = len({row["seed"] for row in errors})
    return (
        f"{as_markdown(lines)}\n\n{budget:.0f} s of training each at most, {seeds} seed(s); a "
        "method stops before if its bound on a tenth of the training images no longer grows.\n"
    )


frey, olivetti, mnist = (partial(run, name) for name in CASES)
