"""``curvi fit``: a Bayesian regression on a user's table, or on the bundled example."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from curvi._core.errors import InputError

_SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t"}


@dataclass(frozen=True)
class FitCommand:
    """Fit a Bayesian regression to a table, or to the bundled breast-cancer data.

    Prints the verdict, the bound, and the coefficients with their posterior sds. Without a table
    it is logistic regression on scikit-learn's breast-cancer data, of standardised features; with
    one, features are standardised inside and coefficients are in the units of the table.
    """

    table: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE.csv")] = None
    """CSV file: a header, then numbers (gzip and bzip2 are unpacked). The target may be text."""
    target: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    """Column of the table to explain."""
    model: Literal["auto", "logistic", "poisson", "linear"] = "auto"
    """Of a table. auto: logistic for classes, linear for real numbers; counts have to be named."""
    ignore: tuple[str, ...] = ()
    """Columns of the table to leave out."""
    separator: Literal["comma", "semicolon", "tab"] = "comma"
    """What stands between the cells of the table."""
    prior: Literal["normal", "ard"] = "normal"
    """Prior of coefficients; ard (tables only) switches irrelevant features off."""
    prior_scale: float = 1.0
    """Sd of the normal prior of every coefficient, of standardised features."""
    family: Literal["mean-field", "full-rank", "low-rank"] = "mean-field"
    """Variational family: the structure of the posterior covariance."""
    rank: int = 10
    """Rank of the low-rank family."""
    seed: int = 0
    """Seed of all randomness."""
    out: Path | None = None
    """Folder for config.json, a figure, and a summary or a report with coefficients.csv."""

    def run(self) -> int:
        """Fit, print, and write the files asked for; 1 means that the fit did not converge."""
        self._check()
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)  # refused before the fit, not after it
        return self._run_bundled() if self.table is None else self._run_table(self.table)

    def config(self) -> str:
        """The command as JSON text."""
        fields = dataclasses.asdict(self)
        plain = {k: str(v) if isinstance(v, Path) else v for k, v in fields.items()}
        return json.dumps(plain, indent=2) + "\n"

    def _check(self) -> None:
        from curvi._core import validation

        validation.positive_number(self.prior_scale, "--prior-scale")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"--seed is {self.seed}; it must be between 0 and {2**32 - 1}")
        if self.table is not None and self.target is None:
            raise InputError(f"--target is missing; name the column of {self.table} to explain")
        if self.table is None:
            plain: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(self)}
            for name in ("target", "model", "ignore", "separator", "prior"):
                if getattr(self, name) != plain[name]:
                    raise InputError(f"--{name} needs a table: curvi fit table.csv --target COLUMN")

    def _run_bundled(self) -> int:
        from curvi.cli._bundled import fit_bundled

        result, names = fit_bundled(self.family, self.rank, self.prior_scale, self.seed)
        print(result.summary(names))
        if self.out is not None:
            from curvi._core.files import write_atomically
            from curvi.plots import png_bytes

            write_atomically(self.out / "config.json", self.config())
            write_atomically(self.out / "summary.txt", result.summary(names) + "\n")
            write_atomically(self.out / "fit.png", png_bytes(result.plot(names)))
            print(f"\nwritten to {self.out}: config.json, fit.png, summary.txt")
        return 0 if result.converged else 1

    def _run_table(self, path: Path) -> int:
        from curvi.cli._report import write_report
        from curvi.cli._table import fit_table
        from curvi.datasets import read_table

        separator = _SEPARATORS[self.separator]
        table = read_table(path, str(self.target), ignore=self.ignore, separator=separator)
        covariance = {"mean-field": "diagonal", "full-rank": "full"}.get(self.family, self.family)
        fitted = fit_table(
            table,
            target=str(self.target),
            model=self.model,
            prior=self.prior,
            prior_scale=self.prior_scale,
            covariance=covariance,
            rank=self.rank,
            random_state=self.seed,
        )
        print(fitted.text())
        if self.out is not None:
            written = write_report(self.out, fitted, title=path.name, config=self.config())
            print(f"\nwritten to {self.out}: {', '.join(written)}")
        return 0 if fitted.converged else 1
