"""What a fitted mixed model is used for: tables, predictions, draws, figures."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.memory import require_memory
from curvi._core.text import printable, quoted
from curvi.likelihoods import Likelihood
from curvi.mixed import _report as report
from curvi.mixed._figures import plot_estimates, plot_groups
from curvi.mixed._formula import Matrices
from curvi.mixed._posterior import MixedPosterior
from curvi.mixed._prediction import (
    NewRows,
    expected_response,
    intervals,
    response_intervals,
    row_log_likelihood,
)  # fmt: skip
from curvi.mixed._response import require_variation, response_of
from curvi.mixed._table import as_frame, checked, codes_of, labels_of
from curvi.mixed._training import restored_frame


class FittedUse:
    """Methods of a fitted model; all of them compute from ``posterior_``."""

    formula_: str
    posterior_: MixedPosterior
    classes_: tuple[str, ...]
    random_state: int
    n_rows_: int
    message_: str
    warnings_: tuple[str, ...]
    _columns: dict[str, Any]
    _log_ratios: np.ndarray
    _scales: np.ndarray
    _origin: np.ndarray
    _memory: Matrices
    _without_rows: bool = False

    def _likelihood(self) -> Likelihood:
        raise NotImplementedError

    def _priors(self) -> list[tuple[str, str]]:
        raise NotImplementedError

    @property
    def group_effects_(self) -> dict[str, Any]:
        """Effects of every level: a table by factor, with means and sds of each effect."""
        import pandas as pd

        check_is_fitted(self, "posterior_")
        out = {}
        for index, grouping in enumerate(self.posterior_.groupings):
            mean, sd = self.posterior_.effects(index)
            columns = {}
            for k, effect in enumerate(grouping.effects):
                columns[effect], columns[f"{effect} sd"] = mean[:, k], sd[:, k]
            level = pd.Index(list(grouping.labels), name=grouping.name)
            out[grouping.name] = pd.DataFrame(columns, index=level)
        return out

    def summary_table(self) -> Any:
        """Mean, sd and central 90 % interval of all but the group effects, as a DataFrame."""
        import pandas as pd

        check_is_fitted(self, "posterior_")
        return pd.DataFrame(report.table_of(self.posterior_))

    def summary(self) -> str:
        """Formula, priors, estimates with intervals, and the verdict, as text."""
        check_is_fitted(self, "posterior_")
        groups = ", ".join(
            f"{len(g.labels)} levels of {printable(g.name)}" for g in self.posterior_.groupings
        )
        what = ""
        if self.classes_:
            event = f"P({self._memory.formula.response} = {self.classes_[1]})"
            what = f"  response    {printable(event)}\n"
        head = report.description(self.formula_, self._likelihood(), self._priors())
        table = report.text_table(report.table_of(self.posterior_))
        alarms = "".join(f"\n! {printable(sentence)}" for sentence in self.warnings_)
        rows = f"  data        {self.n_rows_} rows, {groups}"
        return f"{head}\n{what}{rows}\n\n{table}\n\n{printable(self.message_)}{alarms}"

    @property
    def khat_(self) -> float | None:
        """Pareto k of the importance weights: below 0.7 their averages can be trusted.

        Above it a fit warns, unless more than half of the points are effective: the largest weights
        then carry little, whatever the shape of their tail. None where there are no weights:
        a small design of points carries the hyperparameters (more than 80 fixed and crossed
        effects, or more than three per group).
        """
        check_is_fitted(self, "posterior_")
        return report.khat_of(self._log_ratios)

    def _matrices(self) -> Matrices:
        """The formula with what it has learned from the rows of the fit."""
        check_is_fitted(self, "posterior_")
        return self._memory

    def _fitted_rows(self) -> Any:
        """The table of the fit, of which a Gaussian model in parts has sums alone."""
        if self._without_rows:
            raise InputError(
                "the model was fitted to a table in parts, whose rows are not kept; fit the whole "
                "table (a DataFrame) where a later call needs its rows"
            )
        return restored_frame(self._columns)

    _claims = {  # noqa: RUF012  of no instance
        "posterior_.names": "texts fixed", "coef_": "real fixed", "coef_sd_": "spread fixed",
        "_scales": "positive fixed", "_origin": "real fixed", "feature_names_": "texts fixed",
        "formula_": "text", "classes_": "anything", "n_rows_": "whole rows", "message_": "text",
        "relative_ess_": "number", "log_evidence_": "number", "_log_ratios": "number ratios",
        "converged_": "switch", "warnings_": "anything", "n_iter_": "whole iterations",
    }  # fmt: skip

    def _check_stored(self: Any) -> None:
        """Refuse a formula of a file that cannot be computed on its own columns."""
        if not hasattr(self, "posterior_"):
            return
        self._check_parameters()
        try:
            table = restored_frame(self._columns)[:100]
            if self._without_rows:
                self._memory.evaluate(table)
            else:
                self._rows(table)
            self._memory.response.of(table)
            names = self._memory.common_columns()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise InputError(
                f"its _memory, _columns or posterior_ cannot be used ({said})"
            ) from error
        if names != list(self.posterior_.names):
            raise InputError("its _memory has other columns than the effects of its posterior_")

    def _rows(self, table: Any) -> NewRows:
        """New rows: levels that were not seen, or whose identity is unknown, are marked."""
        matrices, frame = self._matrices(), as_frame(table)
        formula = matrices.formula
        part = checked(formula, frame, response=False, groups_may_miss=True)
        try:
            X, offset, lefts = matrices.evaluate(part)
        except InputError as error:
            raise InputError(
                f"the formula cannot be evaluated on the new rows: {error}; they need the "
                "columns of the fitted table, with categories that it had"
            ) from error
        bad = np.flatnonzero(~np.isfinite(np.column_stack([X, offset, *lefts])).all(axis=1))
        if len(bad):
            raise InputError(f"row {bad[0]} has a value that is not finite")
        codes: list[np.ndarray] = []
        columns: list[np.ndarray] = []
        for grouping in self.posterior_.groupings:
            mine = [i for i, bar in enumerate(formula.bars) if bar.factor == grouping.name]
            columns.append(np.column_stack([lefts[i] for i in mine]))
            codes.append(codes_of(grouping.labels, part, grouping.columns))
        trials = self._trials(matrices, frame, len(X))
        return NewRows(X, offset, trials, tuple(codes), tuple(columns))

    def _trials(self, matrices: Matrices, frame: Any, rows: int) -> np.ndarray:
        """Trials of new rows of a binomial model; one where they are not given."""
        if not self._likelihood().takes_trials:
            return np.ones(rows)
        try:
            trials = matrices.response.of_trials(frame)
        except InputError:  # not given
            return np.ones(rows)
        bad = np.flatnonzero(~(np.isfinite(trials) & (trials >= 0)))
        if len(bad):
            raise InputError(f"the trials are {trials[bad[0]]:g} in row {bad[0]}; give a count")
        return trials

    def predict(self, table: Any, *, interval: float | None = None, kind: str = "mean") -> Any:
        """Expected responses of new rows, with intervals if asked for.

        A level that was fitted has its posterior effects. A new one has effects from the
        population, with the fitted sds and correlations. Where the group is missing (None, nan)
        its identity is unknown: it is one of the fitted levels, each as likely.

        Parameters
        ----------
        table : DataFrame or dict of columns
            New rows; the response is not needed.
        interval : float, optional
            Probability of a central interval, such as 0.9.
        kind : str
            ``"mean"``: the interval of the expected response given all parameters;
            ``"response"``: of a new response, noise included.

        Returns
        -------
        array, or DataFrame
            Expected responses (probabilities for binary ones); with an interval the columns
            mean, lower, upper.
        """
        rows = self._rows(table)
        likelihood = self._likelihood()
        validation.one_of(kind, ("mean", "response"), "kind")
        mean = expected_response(self.posterior_, likelihood, rows)
        if interval is None:
            return mean
        import pandas as pd

        level = validation.probability_of_interval(interval)
        if kind == "mean":
            low, high, _ = intervals(self.posterior_, likelihood, rows, level)
        else:
            rng = np.random.default_rng([self.random_state, 1])
            low, high = response_intervals(self.posterior_, likelihood, rows, level, rng)
        return pd.DataFrame({"mean": mean, "lower": low, "upper": high})

    def score(self, table: Any) -> float:
        """Share of correct classes for binary responses, R^2 of the predictions for all others.

        Parameters
        ----------
        table : DataFrame or dict of columns
            Rows with their response.

        Returns
        -------
        float
            At most one.
        """
        predicted = self.predict(table)
        y, _ = self._response(as_frame(table))
        if self._likelihood().binary:
            return float(np.mean((predicted > 0.5) == (y > 0.5)))  # noqa: PLR2004  even odds
        return float(1 - np.sum((y - predicted) ** 2) / np.sum((y - y.mean()) ** 2))

    def _response(self, frame: Any) -> tuple[np.ndarray, np.ndarray]:
        formula = self._matrices().formula
        part = checked(formula, frame, response=True, groups_may_miss=True)
        column = part[formula.response] if formula.response in part.columns else None
        if column is not None and self.classes_:
            texts = labels_of(column)
            strange = np.flatnonzero(~np.isin(texts, self.classes_))
            if len(strange):
                raise InputError(
                    f"the response {quoted(formula.response)} is {quoted(texts[strange[0]])} in "
                    f"row {strange[0]}; the model was fitted to {' and '.join(self.classes_)}"
                )
            return (texts == self.classes_[1]).astype(np.float64), np.ones(len(texts))
        found = self._matrices().response.of(part)
        y, trials, _ = response_of(self._likelihood(), found, column, formula.response)
        require_variation(self._likelihood(), y.min(), y.max(), formula.response)
        return y, trials

    def sample_posterior(self, num_draws: int = 1000, *, seed: int | None = None) -> dict[str, Any]:
        """Equally weighted draws of all parameters.

        Parameters
        ----------
        num_draws : int
            Number of draws.
        seed : int, optional
            The same seed gives the same draws; ``random_state`` by default.

        Returns
        -------
        dict of arrays
            After the axis of draws: ``fixed`` (effects), ``effects`` (a list with (levels,
            effects) for each factor of ``posterior_.groupings``), ``theta`` (unconstrained
            hyperparameters, at the means of the columns), and every group sd, correlation and
            residual sd by its name.
        """
        check_is_fitted(self, "posterior_")
        validation.positive_integer(num_draws, "num_draws")
        posterior = self.posterior_
        size = 8.0 * num_draws * (posterior.rest.shape[1] + posterior.level_mean[0].size)
        require_memory(3 * size, f"{num_draws} draws", "ask for fewer")
        source = self.random_state if seed is None else validation.checked_seed(seed)
        rng = np.random.default_rng([source, 2])
        chosen = posterior.resampled(num_draws, rng)
        effects = [posterior.sample_levels(chosen, rng)]
        effects += [posterior.part(i)[chosen] for i in range(1, len(posterior.groupings))]
        named = {
            f"{kind} {name}".strip(): values[chosen]
            for kind, name, values in report.rows_of_summary(posterior)
            if kind != "fixed effect"
        }
        fixed, theta = posterior.fixed()[chosen], posterior.theta[chosen]
        return {"fixed": fixed, "effects": effects, "theta": theta, **named}

    def log_likelihood(self, draws: dict[str, Any]) -> np.ndarray:
        """Log likelihood of every fitted row at draws from `sample_posterior`.

        Parameters
        ----------
        draws : dict
            What `sample_posterior` returned.

        Returns
        -------
        array, (draws, rows)
            In the order of the table that was fitted.
        """
        frame = self._fitted_rows()
        require_memory(24.0 * len(draws["fixed"]) * len(frame), "log likelihoods", "ask for fewer")
        y, trials = self._response(frame)
        rows = self._rows(frame)
        rows = NewRows(rows.X, rows.offset, trials, rows.codes, rows.columns)
        return row_log_likelihood(self.posterior_, self._likelihood(), rows, y, draws)

    def to_arviz(self, num_draws: int = 1000) -> Any:
        """Draws, the response and the log likelihood of every row, for ArviZ.

        Parameters
        ----------
        num_draws : int
            Number of draws, in one chain.

        Returns
        -------
        arviz.InferenceData or xarray.DataTree
            With the groups posterior, log_likelihood and observed_data, so that ``arviz.loo``
            works.

        Raises
        ------
        MissingDependencyError
            If ArviZ is not installed.
        """
        from curvi.interop import arviz_of_draws

        draws = self.sample_posterior(num_draws)
        frame = self._fitted_rows()
        variables = {"fixed": draws["fixed"]}
        dims, coords = {"fixed": ["column"]}, {"column": list(self.posterior_.names)}
        for grouping, effects in zip(self.posterior_.groupings, draws["effects"], strict=True):
            variables[f"effects {grouping.name}"] = effects
            dims[f"effects {grouping.name}"] = [grouping.name, f"{grouping.name} effect"]
            coords[grouping.name] = list(grouping.labels)
            coords[f"{grouping.name} effect"] = list(grouping.effects)
        scalars = {k: v for k, v in draws.items() if k not in ("fixed", "effects", "theta")}
        return arviz_of_draws(
            {**variables, **scalars},
            log_likelihood={"y": self.log_likelihood(draws)},
            observed={"y": self._response(frame)[0]},
            dims=dims,
            coords=coords,
        )

    def plot_effects(self) -> Any:
        """Draw fixed effects, sds and correlations with 90 % intervals.

        Returns
        -------
        matplotlib Figure
            One panel each.
        """
        check_is_fitted(self, "posterior_")
        return plot_estimates(report.table_of(self.posterior_))

    def plot_groups(self, factor: str | None = None) -> Any:
        """Draw the effects of all levels in order of size, with intervals of two sds.

        Parameters
        ----------
        factor : str, optional
            The grouping factor; the first of the model by default.

        Returns
        -------
        matplotlib Figure
            One panel per effect.
        """
        check_is_fitted(self, "posterior_")
        names = [grouping.name for grouping in self.posterior_.groupings]
        index = names.index(validation.one_of(factor or names[0], tuple(names), "factor"))
        mean, sd = self.posterior_.effects(index)
        grouping = self.posterior_.groupings[index]
        return plot_groups(
            mean, sd, labels=list(grouping.labels), effects=list(grouping.effects),
            title=grouping.name,
        )  # fmt: skip
