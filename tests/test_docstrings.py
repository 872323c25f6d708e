"""Public classes and functions have numpydoc docstrings that match their signatures."""

from __future__ import annotations

import enum
import inspect
import re
from typing import Any

import numpydoc.docscrape
import pytest
from numpydoc.validate import ERROR_MSGS, validate

import curvi

pytestmark = pytest.mark.float64_only

ROOMS = (
    "targets", "families", "objective", "reference", "concentration", "linalg", "solvers",
    "inference", "diagnostics", "interop", "glm", "vae", "datasets", "plots",
)  # fmt: skip

# Every check of numpydoc that is not made, and why.
SWITCHED_OFF = {
    "ES01": "one line is enough where one line says everything",
    "EX01": "examples stand in the manual, which runs them; a docstring has one where it helps",
    "PR04": "types stand in the signature, where mypy and the run-time checker read them",
    "PR05": "types stand in the signature",
    "PR06": "types stand in the signature",
    "PR08": "a description may start with a symbol or a lower-case name",
    "PR09": "a description may be a phrase without a full stop",
    "RT02": "a named return value is clearer than a bare type where there are several",
    "RT04": "a description may start with a symbol or a lower-case name",
    "RT05": "a description may be a phrase without a full stop",
    "SA01": "the manual links related names; a list in every docstring would go stale",
    "SA04": "a name in See Also may speak for itself",
    "SS05": "a docstring states what is computed, formula included; the mood is free",
    "GL01": "the summary stands on the line of the opening quotes",
    "GL02": "the closing quotes of a one-line docstring stand on its line",
    "GL03": "ruff checks blank lines",
    "YD01": "nothing public is a generator",
}
CHECKS = frozenset(ERROR_MSGS) - frozenset(SWITCHED_OFF)

# Public names whose docstrings do not pass yet. A name that passes must leave this set.
PENDING: frozenset[str] = frozenset(
    {
        "curvi.BayesianLinearRegression",
        "curvi.BayesianPoissonRegression",
        "curvi.FitResult",
        "curvi.SemiSupervisedVAE",
        "curvi.VAE",
        "curvi.calibrate",
        "curvi.concentration.LipschitzEstimate",
        "curvi.concentration.logistic_lipschitz",
        "curvi.concentration.logistic_row_lipschitz",
        "curvi.concentration.measure_variance",
        "curvi.datasets.Listing",
        "curvi.datasets.Table",
        "curvi.datasets.load",
        "curvi.datasets.names",
        "curvi.datasets.path",
        "curvi.datasets.read_table",
        "curvi.diagnostics.ImportanceWeights",
        "curvi.diagnostics.Moments",
        "curvi.diagnostics.evaluate",
        "curvi.diagnostics.evaluate_elbo",
        "curvi.fit",
        "curvi.inference.LaplaceResult",
        "curvi.laplace",
        "curvi.linalg.DenseMap",
        "curvi.linalg.Diagonal",
        "curvi.linalg.SecantMemory",
        "curvi.linalg.apply_inverse",
        "curvi.linalg.condition_estimate",
        "curvi.linalg.conjugate_gradient",
        "curvi.linalg.damped",
        "curvi.linalg.empty_memory",
        "curvi.linalg.gauss_newton",
        "curvi.linalg.hessian",
        "curvi.linalg.hutchinson_diagonal",
        "curvi.linalg.lanczos_tridiagonal",
        "curvi.linalg.martens_diagonal",
        "curvi.linalg.preconditioned",
        "curvi.linalg.projected",
        "curvi.linalg.relative_error_bound",
        "curvi.linalg.remember",
        "curvi.minimise",
        "curvi.objective.draw_noise",
        "curvi.objective.energies",
        "curvi.objective.fixed_draws",
        "curvi.objective.host_sample",
        "curvi.objective.neg_elbo",
        "curvi.objective.normalise",
        "curvi.objective.plan_draws",
        "curvi.objective.sample_draws",
        "curvi.objective.whiten",
        "curvi.plots.plot_coefficients",
        "curvi.plots.plot_effects",
        "curvi.plots.plot_fit",
        "curvi.plots.plot_images",
        "curvi.plots.plot_sheet",
        "curvi.plots.plot_training",
        "curvi.reference.covariance_covariance_hessian",
        "curvi.reference.covariance_gradient",
        "curvi.reference.diagonal_gradient",
        "curvi.reference.diagonal_hessian",
        "curvi.reference.diagonal_hessian_vector_product",
        "curvi.reference.gradient",
        "curvi.reference.hessian",
        "curvi.reference.hessian_vector_product",
        "curvi.reference.mean_covariance_hessian",
        "curvi.reference.mean_gradient",
        "curvi.reference.mean_mean_hessian",
        "curvi.reference.mean_scale_hessian",
        "curvi.reference.parameter_gradient",
        "curvi.reference.parameter_hessian",
        "curvi.reference.parameter_hessian_vector_product",
        "curvi.reference.scale_scale_hessian",
        "curvi.reference.tie_covariance_covariance_hessian",
        "curvi.reference.tie_covariance_gradient",
        "curvi.reference.tie_mean_covariance_hessian",
        "curvi.solvers.Pass",
        "curvi.vae.Bernoulli",
        "curvi.vae.MLPObjective",
        "curvi.vae.best_num_draws",
        "curvi.vae.initial_params",
    }
)


def public_objects() -> dict[str, Any]:
    """Every public class and function once, under its shortest name."""
    found: dict[int, tuple[str, Any]] = {}
    for prefix, module in [("curvi", curvi)] + [(f"curvi.{r}", getattr(curvi, r)) for r in ROOMS]:
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                found.setdefault(id(thing), (f"{prefix}.{name}", thing))
    return dict(found.values())


OBJECTS = public_objects()


def has_own_constructor(thing: Any) -> bool:
    """Whether a user calls this with arguments that its own docstring has to explain."""
    if not inspect.isclass(thing):
        return True
    if issubclass(thing, enum.Enum) or getattr(thing, "_is_protocol", False):
        return False
    return not issubclass(thing, BaseException) or "__init__" in vars(thing)


def documented_attributes(thing: Any) -> set[str]:
    """Fields under Attributes: a result that curvi builds documents what is read from it."""
    section = numpydoc.docscrape.NumpyDocString(inspect.getdoc(thing) or "")["Attributes"]
    return {name.strip() for entry in section for name in entry.name.split(",")}


def undocumented(thing: Any, message: str) -> set[str]:
    """The parameters that numpydoc misses, less those that stand under Attributes."""
    missing = set(re.findall(r"'([^']+)'", message))
    return missing - documented_attributes(thing) if inspect.isclass(thing) else missing


def problems(name: str, thing: Any) -> list[str]:
    """What is wrong with a docstring, as ``code: sentence``."""
    found = []
    for code, message in validate(name)["errors"]:
        if code not in CHECKS:
            continue
        if code == "PR01" and not (has_own_constructor(thing) and undocumented(thing, message)):
            continue
        found.append(f"{code}: {message}")
    return found


@pytest.mark.parametrize("name", sorted(OBJECTS.keys() - PENDING))
def test_a_public_name_has_a_complete_docstring(name):
    assert problems(name, OBJECTS[name]) == []


@pytest.mark.parametrize("name", sorted(PENDING))
def test_a_pending_name_still_exists_and_still_fails(name):
    assert name in OBJECTS, f"{name} is no longer public; remove it from PENDING"
    assert problems(name, OBJECTS[name]), f"{name} passes; remove it from PENDING"


def test_every_check_that_is_switched_off_exists():
    assert SWITCHED_OFF.keys() <= ERROR_MSGS.keys()


def planted_gap(known: int, forgotten: int) -> int:
    """Add two numbers.

    Parameters
    ----------
    known
        The first one.
    """
    return known + forgotten


def test_a_planted_gap_is_found():
    codes = {text.partition(":")[0] for text in problems(f"{__name__}.planted_gap", planted_gap)}
    assert codes == {"PR01", "RT01"}
