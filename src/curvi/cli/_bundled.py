"""The example that needs no file: scikit-learn's bundled breast-cancer data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curvi.diagnostics import FitResult
    from curvi.families import Family
    from curvi.targets import DataTarget


def fit_bundled(
    family: str, rank: int, prior_scale: float, seed: int
) -> tuple[FitResult, list[str]]:
    """The fit itself, in double precision without touching the global configuration."""
    import jax

    from curvi.inference import fit

    with jax.enable_x64(True):
        target, names = breast_cancer(prior_scale)
        # The summary says what a warning would say, with the verdict on top.
        chosen = _family(family, rank)
        return fit(target, family=chosen, seed=seed, on_failure="return"), names


def _family(name: str, rank: int) -> Family:
    from curvi.families import FullRank, LowRank, MeanField

    if name == "low-rank":
        return LowRank(rank)
    return FullRank() if name == "full-rank" else MeanField()


def breast_cancer(prior_scale: float) -> tuple[DataTarget, list[str]]:
    """The posterior of a logistic regression with a Gaussian prior, and names of its columns."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from sklearn.datasets import load_breast_cancer

    from curvi.targets import DataTarget

    table = load_breast_cancer()
    scaled = (table.data - table.data.mean(axis=0)) / table.data.std(axis=0)
    x = np.column_stack([scaled, np.ones(len(scaled))])
    data = {"x": x, "sign": np.where(table.target == 1, 1.0, -1.0)}

    def log_likelihood(beta: Any, rows: dict[str, Any]) -> Any:
        return jax.nn.log_sigmoid(rows["sign"] * (rows["x"] @ beta))

    def log_prior(beta: Any) -> Any:
        constant = jnp.log(prior_scale) + 0.5 * jnp.log(2 * jnp.pi)
        return jnp.sum(-0.5 * (beta / prior_scale) ** 2 - constant)

    names = [*(str(name) for name in table.feature_names), "intercept"]
    return DataTarget(log_likelihood, data, log_prior, np.zeros(len(names))), names
