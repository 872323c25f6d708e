"""``curvi fit``: a Bayesian regression on a user's table, or on the bundled example."""

from __future__ import annotations

import dataclasses
import json
import shlex
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro

from curvi._core.errors import InputError, MisfitWarning, NotConvergedWarning
from curvi._core.files import check_output, output_folder, refuse_inputs
from curvi.cli._launch import is_first_process, shared_mesh
from curvi.cli._terminal import complain, say

if TYPE_CHECKING:
    from curvi.report import Report

DEFAULT_REPORT = Path("curvi-report.html")
_REPORT_FILES = ("config.json", "report.html", "report.json")
_FILES = {
    "bundled": (*_REPORT_FILES, "fit.png", "summary.txt"),
    "table": (*_REPORT_FILES, "coefficients.csv", "coefficients.png"),
    "formula": (*_REPORT_FILES, "estimates.csv", "groups.csv", "estimates.png", "groups.png"),
}
_PLAIN_SCALE = 1.0


class _Done(NamedTuple):
    """What a fit leaves: its report, the code of the command, and further files if asked for."""

    report: Report
    code: int
    files: Callable[[], dict[str, Any]]
    save: Callable[[Path], None]


@dataclass(frozen=True)
class FitCommand:
    """Fit a Bayesian regression to a table, or to the bundled breast-cancer data.

    Prints the verdict and the clearest estimates, and writes a report for the browser. Without a
    table it is logistic regression on scikit-learn's breast-cancer data.
    """

    table: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[TABLE.csv]")] = None
    """CSV file with a header (gzip and bzip2 are unpacked). Separator and decimal commas are
    found. Columns of text become indicators; dates and identifiers of text are left out, and
    said so. A Parquet file is read in blocks and may be larger than memory."""
    target: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    """Column of the table to explain."""
    formula: Annotated[str | None, tyro.conf.arg(metavar="FORMULA")] = None
    """Mixed model in place of --target: "y ~ x + (1 | group)"."""
    likelihood: Annotated[str, tyro.conf.arg(metavar="NAME")] = "gaussian"
    """Of a formula: gaussian, student-t, lognormal, gamma, exponential, weibull, beta, bernoulli,
    binomial, beta-binomial, poisson, negative-binomial, zero-inflated-poisson, ..."""
    model: Literal["auto", "logistic", "poisson", "linear"] = "auto"
    """Of a table. auto: logistic for classes, linear for real numbers; counts have to be named."""
    ignore: tuple[str, ...] = ()
    """Columns of the table to leave out."""
    missing: Literal["refuse", "drop", "mean"] = "refuse"
    """Missing cells (empty, NA, nan, null, ?): refuse them, leave out their rows, or fill in the
    mean of the column."""
    separator: Literal["auto", "comma", "semicolon", "tab"] = "auto"
    """What stands between the cells of the table; auto finds it."""
    prior: Literal["normal", "ard"] = "normal"
    """Prior of coefficients; ard (tables only) switches irrelevant features off."""
    prior_scale: float = _PLAIN_SCALE
    """Sd of the normal prior of every coefficient, of standardised features; of a formula, in
    the units of the table, and 2.5 sds of the response over that of the column unless given."""
    family: Literal["auto", "mean-field", "full-rank", "low-rank"] = "auto"
    """Variational family: the structure of the posterior covariance. auto climbs to what fits;
    of a table it is full-rank up to 800 coefficients with a normal prior, mean-field otherwise."""
    rank: int = 10
    """Rank of the low-rank family."""
    seed: int = 0
    """Seed of all randomness."""
    checkpoint: Path | None = None
    """File that keeps the state of a long fit; the same command resumes from it."""
    save: Path | None = None
    """File for the fitted model, which curvi predict and curvi.load() read."""
    out: Path | None = None
    """Folder for the report and its numbers, config.json, tables as CSV and figures. Without it
    the report is curvi-report.html in the current folder."""
    overwrite: bool = False
    """Replace the files of an earlier fit in --out, and that of --save."""
    report: bool = True
    """Write the report; --no-report leaves it out."""
    json: bool = False
    """Print the numbers of the report as JSON instead of text."""

    def run(self) -> int:
        """Fit, print, and write the files asked for; 1 means that the fit did not converge."""
        self._check()
        kind = "bundled" if self.table is None else "table" if self.formula is None else "formula"
        if is_first_process():
            self._check_outputs(_FILES[kind])
        run = {"bundled": self._run_bundled, "table": self._run_table, "formula": self._run_mixed}
        done = run[kind]()
        if not is_first_process():
            return done.code
        from curvi.report import text_of

        say(done.report.json().rstrip() if self.json else text_of(done.report))
        try:
            if self.save is not None:
                done.save(self.save)
        finally:  # a disk without room for the model may have it for the report
            self._write(done)
        return done.code

    def _check_outputs(self, names: tuple[str, ...]) -> None:
        """Refuse, before any work, what cannot be written or would replace a file unasked."""
        pages = [DEFAULT_REPORT, DEFAULT_REPORT.with_suffix(".json")] if self.report else []
        paths = pages if self.out is None else [self.out / name for name in names]
        if self.checkpoint is not None:  # one that is there is resumed
            check_output(self.checkpoint, "--checkpoint", overwrite=True, inputs=[self.table])
        refuse_inputs(paths, "the report" if self.out is None else "--out",
                      [self.table, self.checkpoint])  # fmt: skip
        if self.out is not None:
            output_folder(self.out, paths, overwrite=self.overwrite)
        if self.save is not None:
            others = [self.table, self.checkpoint, *paths]
            check_output(self.save, "--save", overwrite=self.overwrite, inputs=others)

    def _check(self) -> None:
        from curvi._core import validation

        validation.positive_number(self.prior_scale, "--prior-scale")
        check_seed(self.seed)
        if self.table is not None and self.target is None and self.formula is None:
            raise InputError(f"--target is missing; name the column of {self.table} to explain")
        if self.table is None:
            self._refuse(
                ("target", "formula", "likelihood", "model", "ignore", "missing", "separator",
                 "prior"),
                "needs a table: curvi fit table.csv --target COLUMN",
            )  # fmt: skip
        elif self.formula is not None:
            self._refuse(
                ("target", "model", "ignore", "prior", "family"),
                "does not go with --formula; leave one of them out",
            )
            if self.missing == "mean":
                raise InputError("--missing mean does not go with --formula; use --missing drop")
        else:
            self._refuse(("likelihood",), "needs --formula; use --model with --target")

    def _refuse(self, names: tuple[str, ...], sentence: str) -> None:
        """Refuse options that were given and mean nothing here."""
        plain: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(self)}
        for name in names:
            if getattr(self, name) != plain[name]:
                raise InputError(f"--{name} {sentence}")

    def _run_bundled(self) -> _Done:
        import jax

        from curvi.cli._bundled import bundled_report, fit_bundled

        with jax.enable_x64(True):
            # The report says what a warning would say, with the verdict on top.
            with warnings.catch_warnings():
                for category in (MisfitWarning, NotConvergedWarning):
                    warnings.simplefilter("ignore", category)
                result, data = fit_bundled(
                    self.prior_scale, self.family, self.rank, seed=self.seed,
                    checkpoint=self.checkpoint, mesh=shared_mesh(),
                )  # fmt: skip
            page = bundled_report(result, data, call=self.call(), configuration=self.shown())
            summary = result.summary(data.names)

        def save(path: Path) -> None:
            with jax.enable_x64(True):
                result.save(path)

        code = 130 if result.interrupted else 0 if result.converged else 1
        return _Done(page, code, lambda: {
            "fit.png": result.plot(names=data.names), "summary.txt": summary + "\n",
        }, save)  # fmt: skip

    def _run_table(self) -> _Done:
        from curvi.cli._encode import prepare
        from curvi.cli._stream import as_text, fit_stream, is_long
        from curvi.cli._table import fit_table, table_report

        path = Path(str(self.table))
        names = {"mean-field": "diagonal", "full-rank": "full"}
        options: dict[str, Any] = {
            "target": str(self.target),
            "model": self.model,
            "prior": self.prior,
            "prior_scale": self.prior_scale,
            "covariance": names.get(self.family, self.family),
            "rank": self.rank,
            "random_state": self.seed,
            "checkpoint": self.checkpoint,
        }
        notes: tuple[str, ...] = ()
        if is_long(path):
            fitted = fit_stream(path, ignore=self.ignore, **options)
            recipe = {"target": fitted.target, "columns": [{"name": n} for n in fitted.names]}
        else:
            with tempfile.TemporaryDirectory() as folder:
                prepared = prepare(
                    as_text(path, folder), str(self.target), ignore=self.ignore,
                    separator=self.separator, missing=self.missing,
                )  # fmt: skip
            fitted = fit_table(prepared.table, mesh=shared_mesh(), **options)
            fitted.said.update(prepared.facts)
            recipe, notes = prepared.recipe, prepared.notes
        fitted.estimator.table_ = {**recipe, "classes": list(fitted.classes)}
        page = table_report(
            fitted, title=f"{self.target} in {path.name}", call=self.call(),
            configuration=self.shown(), notes=notes,
        )  # fmt: skip
        return _Done(page, 0 if fitted.converged else 1, lambda: {
            "coefficients.csv": fitted.rows(), "coefficients.png": fitted.figure(),
        }, fitted.estimator.save)  # fmt: skip

    def _run_mixed(self) -> _Done:
        from curvi.cli._mixed import fit_formula

        path = Path(str(self.table))
        fitted = fit_formula(
            path,
            separator=self.separator,
            missing=self.missing,
            formula=self.formula,
            likelihood=self.likelihood,
            prior_scale=None if self.prior_scale == _PLAIN_SCALE else self.prior_scale,
            random_state=self.seed,
            checkpoint=self.checkpoint,
            mesh=shared_mesh(),
        )
        page = fitted.report(title=path.name, call=self.call(), configuration=self.shown())
        return _Done(page, 0 if fitted.converged else 1, fitted.files, fitted.model.save)

    def config(self) -> str:
        """The command as JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=2, default=str) + "\n"

    def shown(self) -> dict[str, Any]:
        """The options for a reader elsewhere: files by their names, without folders."""
        hidden = ("out", "overwrite", "report", "json")
        values = {k: v for k, v in dataclasses.asdict(self).items() if k not in hidden}
        return {k: v.name if isinstance(v, Path) else v for k, v in values.items() if v is not None}

    def call(self) -> str:
        """The command that repeats the fit, without the folders of this machine."""
        words = ["curvi", "fit"]
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if value == entry.default or entry.name in ("overwrite", "report", "json"):
                continue
            option = f"--{entry.name.replace('_', '-')}"
            given = list(value) if isinstance(value, tuple) else [value]
            texts = [v.name if isinstance(v, Path) else str(v) for v in given]
            words += texts if entry.name == "table" else [option, *texts]
        return shlex.join(words)

    def _write(self, done: _Done) -> None:
        """Write the report, and with --out everything else; say where it is."""
        from curvi.paper.experiments._figures import write_files
        from curvi.report import write_report

        if self.out is not None:
            write_files(self.out, {"config.json": self.config(), **done.files()})
        if not self.report:
            return
        place = DEFAULT_REPORT if self.out is None else self.out / "report.html"
        try:
            page = write_report(done.report, place)
        except (OSError, InputError) as error:
            if self.out is not None:
                raise
            complain(f"no report was written: {error}")  # the fit itself is printed
            return
        if not self.json:
            more = "; its numbers, tables and figures are beside it" if self.out else ""
            say(f"\nreport  {page}  (open it in a browser{more})")


def check_seed(seed: int) -> int:
    """Validate a seed of 32 bits."""
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed is {seed}; it must be between 0 and {2**32 - 1}")
    return seed
