"""The classes that files may name, and where they are.

A class joins with one word here. Its constructor must do nothing but validate and keep its
arguments: a file chooses them.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from curvi._core.errors import InputError

# The classes of each module by their names in files, which outlive the places of classes; a name
# that is another class elsewhere is followed by a colon and that of the class.
_NAMES = {
    "curvi._core.errors": "Outcome",
    "curvi.objective": "Draws",
    "curvi.engine": "Execution RunResult",
    "curvi.targets._targets": "Labels",
    "curvi.families": (
        "MeanField FullRank LowRank LocationScale StudentT Params Conditional Chain SparsePrecision"
    ),
    "curvi.families._bases": "Normal Laplace Logistic StudentTBase MultivariateTBase",
    "curvi.solvers": "TrustRegion HFSGVI LBFGS KFAC HessianFree DSVI Averaged NaturalGradient",
    "curvi.diagnostics": "FitResult Replicates Mode ImportanceWeights",
    "curvi.diagnostics._correction": "Attempt Correction",
    "curvi.diagnostics._moments": "UserMoments",
    "curvi.inference": "OptimiseResult",
    "curvi.glm": "BayesianLogisticRegression BayesianPoissonRegression BayesianLinearRegression",
    "curvi.glm._fit": "GLMFit",
    "curvi.glm._starts": "Optimum",
    "curvi.glm._posterior": "Posterior",
    "curvi.glm._design": "Columns",
    "curvi.likelihoods": "Extra BernoulliPixels GaussianPixels",
    "curvi.mixed": "MixedModel",
    "curvi.mixed._posterior": "MixedPosterior Grouping",
    "curvi.mixed._hyper": "Layout Block",
    "curvi.mixed._formula": "Formula Bar Matrices Response",
    "curvi.mixed._expressions": "Constant Operation Call Column",
    "curvi.mixed._terms": "Piece Component Sum FormulaColumns:Columns",
    "curvi.latent": "Lattice",
    "curvi.sequences": "StateSpace",
    "curvi.sequences._series": "Series",
    "curvi.vae": "VAE SemiSupervisedVAE DeepMarkovModel MarkovObjective",
    "curvi.vae._training": "Trained",
    "curvi.vae._networks": "MLPObjective VAEParams",
    "curvi.vae._class_objective": "ClassObjective ClassParams",
}
KINDS = {
    name.partition(":")[0]: ":".join([module, *name.split(":")[1:]])
    for module, names in _NAMES.items()
    for name in names.split()
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
