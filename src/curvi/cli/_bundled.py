"""The bundled example of ``curvi fit``: logistic regression on breast-cancer data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from curvi.report import Report
    from curvi.targets import DataTarget


@dataclass(frozen=True)
class Bundled:
    """The rows of the example and the names of their columns."""

    x: np.ndarray
    benign: np.ndarray
    names: list[str]


def bundled_rows() -> Bundled:
    """Standardised columns of the data bundled with scikit-learn, and a constant one."""
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer()
    scaled = (table.data - table.data.mean(axis=0)) / table.data.std(axis=0)
    names = [*(str(name) for name in table.feature_names), "intercept"]
    return Bundled(np.column_stack([scaled, np.ones(len(scaled))]), table.target == 1, names)


def breast_cancer(prior_scale: float) -> tuple[DataTarget, list[str]]:
    """The posterior of a logistic regression with a Gaussian prior, and names of its columns.

    The data are those bundled with scikit-learn, so that the example needs no file.
    """
    import jax
    import jax.numpy as jnp

    from curvi.targets import DataTarget

    rows = bundled_rows()
    data = {"x": rows.x, "sign": np.where(rows.benign, 1.0, -1.0)}

    def log_likelihood(beta: Any, rows: dict[str, Any]) -> Any:
        return jax.nn.log_sigmoid(rows["sign"] * (rows["x"] @ beta))

    def log_prior(beta: Any) -> Any:
        constant = jnp.log(prior_scale) + 0.5 * jnp.log(2 * jnp.pi)
        return jnp.sum(-0.5 * (beta / prior_scale) ** 2 - constant)

    return DataTarget(log_likelihood, data, log_prior, np.zeros(len(rows.names))), rows.names


def fit_bundled(prior_scale: float, family: str, rank: int, **options: Any) -> tuple[Any, Bundled]:
    """Fit the example with a family of the command line."""
    from curvi.families import FullRank, LowRank, MeanField
    from curvi.inference import fit

    families: dict[str, Any] = {
        "auto": lambda: "auto",
        "mean-field": MeanField,
        "full-rank": FullRank,
        "low-rank": lambda: LowRank(rank),
    }
    target, _ = breast_cancer(prior_scale)
    result = fit(target, family=families[family](), on_failure="return", **options)
    return result, bundled_rows()


def bundled_report(
    result: Any, data: Bundled, *, call: str, configuration: dict[str, Any], draws: int = 400
) -> Report:
    """The page about the example, with its predictions beside what was observed."""
    from curvi.diagnostics import FitPage

    beta = np.asarray(result.sample(draws), float)
    chance = 1 / (1 + np.exp(-(beta @ data.x.T)))
    drawn = np.random.default_rng(0).random(chance.shape) < chance
    seen = (data.benign.astype(float), drawn.astype(float))
    page = FitPage(result, data.names, seen, call=call, configuration=configuration)
    return page.report("Which measurements of a tumour say that it is benign?")
