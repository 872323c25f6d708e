"""``curvi fit``: a Bayesian regression on a user's table, or on the bundled example."""

from __future__ import annotations

import dataclasses
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from curvi._core.errors import InputError, MisfitWarning, NotConvergedWarning
from curvi._core.files import output_folder
from curvi.cli._launch import is_first_process, shared_mesh
from curvi.cli._terminal import say

if TYPE_CHECKING:
    from curvi.targets import DataTarget

_BUNDLED_FILES = ("config.json", "fit.png", "summary.txt")
_TABLE_FILES = ("config.json", "coefficients.csv", "coefficients.png", "report.html")
_MIXED_FILES = (
    "config.json", "estimates.csv", "groups.csv", "estimates.png", "groups.png", "report.html",
)  # fmt: skip
_PLAIN_SCALE = 1.0
_SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t"}


@dataclass(frozen=True)
class FitCommand:
    """Fit a Bayesian regression to a table, or to the bundled breast-cancer data.

    Prints the verdict, the ELBO, and the coefficients with their posterior sds. Without a table
    it is logistic regression on scikit-learn's breast-cancer data, of standardised features; with
    one, features are standardised inside and coefficients are in the units of the table.
    """

    table: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[TABLE.csv]")] = None
    """CSV file: a header, then numbers (gzip and bzip2 are unpacked); the target may be text. A
    Parquet file is read in blocks and may be larger than memory."""
    target: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    """Column of the table to explain."""
    formula: Annotated[str | None, tyro.conf.arg(metavar="FORMULA")] = None
    """Mixed model in place of --target: "y ~ x + (1 | group)". Columns may then hold text."""
    likelihood: Literal[
        "gaussian", "bernoulli", "binomial", "poisson", "negative-binomial", "student-t"
    ] = "gaussian"
    """Of a formula."""
    model: Literal["auto", "logistic", "poisson", "linear"] = "auto"
    """Of a table. auto: logistic for classes, linear for real numbers; counts have to be named."""
    ignore: tuple[str, ...] = ()
    """Columns of the table to leave out."""
    separator: Literal["comma", "semicolon", "tab"] = "comma"
    """What stands between the cells of the table."""
    prior: Literal["normal", "ard"] = "normal"
    """Prior of coefficients; ard (tables only) switches irrelevant features off."""
    prior_scale: float = _PLAIN_SCALE
    """Sd of the normal prior of every coefficient, of standardised features; of a formula, in
    the units of the table, and 2.5 sds of the response over that of the column unless given."""
    family: Literal["auto", "mean-field", "full-rank", "low-rank"] = "auto"
    """Variational family: the structure of the posterior covariance. auto climbs from a full
    covariance to what fits; for tables it is mean-field."""
    rank: int = 10
    """Rank of the low-rank family."""
    seed: int = 0
    """Seed of all randomness."""
    checkpoint: Path | None = None
    """File that keeps the state of a long fit; the same command resumes from it."""
    save: Path | None = None
    """File for the whole result, which curvi.load() reads."""
    out: Path | None = None
    """Folder for config.json, a figure, and a summary or a report with coefficients.csv."""
    overwrite: bool = False
    """Replace the files of an earlier fit."""

    def run(self) -> int:
        """Fit, print, and write the files asked for; 1 means that the fit did not converge."""
        self._check()
        if (out := self.out) is not None and is_first_process():
            names: tuple[str, ...] = _BUNDLED_FILES if self.table is None else _TABLE_FILES
            names = names if self.formula is None else _MIXED_FILES
            output_folder(out, [out / name for name in names], overwrite=self.overwrite)
        if self.table is None:
            return self._run_bundled()
        return self._run_table(self.table) if self.formula is None else self._run_mixed(self.table)

    def _check(self) -> None:
        from curvi._core import validation

        validation.positive_number(self.prior_scale, "--prior-scale")
        check_seed(self.seed)
        if self.table is not None and self.target is None and self.formula is None:
            raise InputError(f"--target is missing; name the column of {self.table} to explain")
        if self.table is None:
            self._refuse(
                ("target", "formula", "likelihood", "model", "ignore", "separator", "prior"),
                "needs a table: curvi fit table.csv --target COLUMN",
            )
        elif self.formula is not None:
            self._refuse(
                ("target", "model", "ignore", "prior", "family", "checkpoint"),
                "does not go with --formula; leave one of them out",
            )
        else:
            self._refuse(("likelihood",), "needs --formula; use --model with --target")

    def _refuse(self, names: tuple[str, ...], sentence: str) -> None:
        """Refuse options that were given and mean nothing here."""
        plain: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(self)}
        for name in names:
            if getattr(self, name) != plain[name]:
                raise InputError(f"--{name} {sentence}")

    def _run_bundled(self) -> int:
        import jax

        from curvi.families import FullRank, LowRank, MeanField
        from curvi.inference import fit

        with jax.enable_x64(True):
            families: dict[str, Any] = {
                "auto": lambda: "auto",
                "mean-field": MeanField,
                "full-rank": FullRank,
                "low-rank": lambda: LowRank(self.rank),
            }
            target, names = breast_cancer(self.prior_scale)
            # The summary says what a warning would say, with the verdict on top.
            with warnings.catch_warnings():
                for category in (MisfitWarning, NotConvergedWarning):
                    warnings.simplefilter("ignore", category)
                result = fit(
                    target, family=families[self.family](), seed=self.seed, on_failure="return",
                    checkpoint=self.checkpoint, mesh=shared_mesh(),
                )  # fmt: skip
            if self.save is not None and is_first_process():
                result.save(self.save)
            summary = result.summary(names)
            say(summary)
            if self.out is not None:
                figure = result.plot(names)
                self._write({"fit.png": figure, "summary.txt": summary + "\n"})
        if result.interrupted:
            return 130
        return 0 if result.converged else 1

    def _run_table(self, path: Path) -> int:
        from curvi.cli._stream import fit_stream
        from curvi.cli._table import fit_table, report_files
        from curvi.datasets import read_table

        separator = _SEPARATORS[self.separator]
        names = {"auto": "diagonal", "mean-field": "diagonal", "full-rank": "full"}
        covariance = names.get(self.family, self.family)
        options: dict[str, Any] = {
            "target": str(self.target),
            "model": self.model,
            "prior": self.prior,
            "prior_scale": self.prior_scale,
            "covariance": covariance,
            "rank": self.rank,
            "random_state": self.seed,
            "checkpoint": self.checkpoint,
        }
        if path.suffix == ".parquet":
            fitted = fit_stream(path, ignore=self.ignore, **options)
        else:
            table = read_table(path, str(self.target), ignore=self.ignore, separator=separator)
            fitted = fit_table(table, mesh=shared_mesh(), **options)
        if self.save is not None and is_first_process():
            fitted.estimator.save(self.save)
        say(fitted.text())
        if self.out is not None:
            self._write(report_files(fitted, title=path.name, config=self.config()))
        return 0 if fitted.converged else 1

    def _run_mixed(self, path: Path) -> int:
        from curvi.cli._mixed import fit_formula, mixed_files

        fitted = fit_formula(
            path,
            separator=_SEPARATORS[self.separator],
            formula=self.formula,
            likelihood=self.likelihood,
            prior_scale=None if self.prior_scale == _PLAIN_SCALE else self.prior_scale,
            random_state=self.seed,
        )
        if self.save is not None:
            fitted.model.save(self.save)
        say(fitted.model.summary())
        for sentence in fitted.said:
            say(f"! {sentence}")
        if self.out is not None:
            self._write(mixed_files(fitted, title=path.name, config=self.config()))
        return 0 if fitted.converged else 1

    def config(self) -> str:
        """The command as JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=2, default=str) + "\n"

    def _write(self, files: dict[str, Any]) -> None:
        from curvi.reproduction._tables import write_files

        if self.out is not None and is_first_process():
            written = write_files(self.out, {"config.json": self.config(), **files})
            names = ", ".join(sorted(path.name for path in written))
            say(f"\nwritten to {self.out}: {names}")


def breast_cancer(prior_scale: float) -> tuple[DataTarget, list[str]]:
    """The posterior of a logistic regression with a Gaussian prior, and names of its columns.

    The data are those bundled with scikit-learn, so that the example needs no file.
    """
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


def check_seed(seed: int) -> int:
    """Validate a seed of 32 bits."""
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed is {seed}; it must be between 0 and {2**32 - 1}")
    return seed
