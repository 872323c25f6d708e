"""``curvi fit``: Bayesian logistic regression on scikit-learn's bundled breast-cancer data."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from curvi.families import Family
    from curvi.results import FitResult
    from curvi.targets import DataTarget


@dataclass(frozen=True)
class FitCommand:
    """Fit a Bayesian logistic regression to the bundled breast-cancer data.

    Prints the verdict, the bound with its standard error, the coefficients with their posterior
    sds (of standardised features) and the time.
    """

    family: Literal["mean-field", "full-rank", "low-rank"] = "mean-field"
    """Variational family."""
    rank: int = 5
    """Rank of the low-rank family."""
    prior_scale: float = 1.0
    """Sd of the Gaussian prior of every coefficient."""
    seed: int = 0
    """Seed of all randomness."""
    out: Path | None = None
    """Folder for config.json, summary.txt and fit.png."""

    def run(self) -> None:
        """Fit, print, and write the files asked for."""
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)  # refused before the fit, not after it
        result, names = self.fit()
        print(result.summary(names))
        if self.out is not None:
            self._write(self.out, result, names)
            print(f"\nwritten to {self.out}: config.json, fit.png, summary.txt")

    def fit(self) -> tuple[FitResult, list[str]]:
        """The fit itself, in double precision without touching the global configuration."""
        import jax

        from curvi.core import gate
        from curvi.fitting import fit

        gate.positive_number(self.prior_scale, "--prior-scale")
        with jax.enable_x64(True):
            target, names = breast_cancer(self.prior_scale)
            return fit(target, family=self._family(), seed=self.seed), names

    def _family(self) -> Family:
        from curvi.families import FullRank, LowRank, MeanField

        if self.family == "low-rank":
            return LowRank(self.rank)
        return FullRank() if self.family == "full-rank" else MeanField()

    def _write(self, folder: Path, result: FitResult, names: list[str]) -> None:
        config = {**dataclasses.asdict(self), "out": str(folder)}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (folder / "summary.txt").write_text(result.summary(names) + "\n")
        result.plot(names).savefig(folder / "fit.png", dpi=120)


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
