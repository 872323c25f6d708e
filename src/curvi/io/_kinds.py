"""The classes that files may name, and where they are.

A class joins with one line here. Its constructor must do nothing but validate and keep its
arguments: a file chooses them.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from curvi._core.errors import InputError

# The name of a class in files, and where it is: files outlive the places of classes.
KINDS: dict[str, str] = {
    "Outcome": "curvi._core.errors",
    "Draws": "curvi.objective",
    "Execution": "curvi.engine",
    "Labels": "curvi.targets._targets",
    **dict.fromkeys(
        ("MeanField", "FullRank", "LowRank", "LocationScale", "StudentT", "Params", "Conditional"),
        "curvi.families",
    ),
    **dict.fromkeys(
        ("Normal", "Laplace", "Logistic", "StudentTBase", "MultivariateTBase"),
        "curvi.families._bases",
    ),
    **dict.fromkeys(
        (
            "TrustRegion",
            "HFSGVI",
            "LBFGS",
            "KFAC",
            "HessianFree",
            "DSVI",
            "Averaged",
            "NaturalGradient",
        ),
        "curvi.solvers",
    ),
    "FitResult": "curvi.diagnostics",
    "Replicates": "curvi.diagnostics",
    "Mode": "curvi.diagnostics",
    "Correction": "curvi.diagnostics._correction",
    "Rung": "curvi.diagnostics._correction",
    "ImportanceWeights": "curvi.diagnostics",
    "UserMoments": "curvi.diagnostics._moments",
    "OptimiseResult": "curvi.inference",
    "RunResult": "curvi.engine",
    **dict.fromkeys(
        (
            "BayesianLogisticRegression",
            "BayesianPoissonRegression",
            "BayesianLinearRegression",
        ),
        "curvi.glm",
    ),
    "GLMFit": "curvi.glm._fit",
    "Optimum": "curvi.glm._starts",
    "Posterior": "curvi.glm._posterior",
    "Columns": "curvi.glm._design",
    "MixedModel": "curvi.mixed",
    **dict.fromkeys(("MixedPosterior", "Grouping"), "curvi.mixed._posterior"),
    **dict.fromkeys(("Layout", "Block", "Extra"), "curvi.mixed._hyper"),
    **dict.fromkeys(("Formula", "Bar", "Matrices", "Response"), "curvi.mixed._formula"),
    **dict.fromkeys(("Constant", "Operation", "Call"), "curvi.mixed._expressions"),
    **dict.fromkeys(("Piece", "Component"), "curvi.mixed._terms"),
    "Column": "curvi.mixed._expressions",
    "Sum": "curvi.mixed._terms",
    "FormulaColumns": "curvi.mixed._terms:Columns",
    "StateSpace": "curvi.sequences",
    "DeepMarkovModel": "curvi.sequences",
    "Series": "curvi.sequences._series",
    "Lattice": "curvi.sequences",
    "MarkovObjective": "curvi.sequences",
    "Chain": "curvi.families",
    "SparsePrecision": "curvi.families",
    "VAE": "curvi.vae",
    "SemiSupervisedVAE": "curvi.vae",
    "Trained": "curvi.vae._training",
    "MLPObjective": "curvi.vae._networks",
    "VAEParams": "curvi.vae._networks",
    "ClassObjective": "curvi.vae._class_objective",
    "ClassParams": "curvi.vae._class_objective",
    "BernoulliPixels": "curvi.vae._objective:Bernoulli",
    "GaussianPixels": "curvi.vae._objective:Gaussian",
}


@cache
def class_of(kind: Any) -> Any:
    """The class of a name in a file; raises InputError for any other name."""
    if kind not in KINDS:
        raise InputError(f"it holds an object of the unknown kind {kind!r}")
    module, _, name = KINDS[kind].partition(":")
    return getattr(importlib.import_module(module), name or kind)


def kind_of(found: Any) -> str | None:
    """The name of a class in files; None for one that is not stored."""
    for kind, place in KINDS.items():
        if (place.partition(":")[2] or kind) == found.__name__ and class_of(kind) is found:
            return kind
    return None
