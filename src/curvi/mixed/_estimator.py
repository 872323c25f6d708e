"""``MixedModel``: formulas with groups, as an estimator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning

from curvi._core import validation
from curvi._core.errors import InputError, MisfitWarning, warn_user
from curvi.engine import opened
from curvi.io import SavedEstimator
from curvi.likelihoods import Likelihood, likelihood_of
from curvi.mixed import _report as report
from curvi.mixed._blocks import learn
from curvi.mixed._checks import inspect_columns, inspect_origins, require_width
from curvi.mixed._design import Design
from curvi.mixed._formula import Matrices, column_names, evaluate, parse
from curvi.mixed._hyper import INTERCEPT, Block, Layout
from curvi.mixed._inference import Fitted, fit_design
from curvi.mixed._levels import Parts
from curvi.mixed._origins import at_centres
from curvi.mixed._page import Reported
from curvi.mixed._parts import collected
from curvi.mixed._posterior import Grouping, MixedPosterior, weighted_moments
from curvi.mixed._response import require_variation, response_of
from curvi.mixed._sums import Summed
from curvi.mixed._table import Scales, as_frame, build, checked
from curvi.mixed._training import joined_frames, stored_columns
from curvi.mixed._use import FittedUse


class MixedModel(Reported, FittedUse, SavedEstimator, BaseEstimator):
    r"""A generalised linear mixed model: fixed effects, effects of groups, integrated variances.

    .. math::

        g(E[y_i]) = x_i'\beta + \sum_f z_{fi}' v_{f, g_f(i)} + \text{offset}_i, \qquad
        v_{f, g} \sim N(0, \Sigma_f)

    Hyperparameters (the sds and correlations in :math:`\Sigma_f`, residual sd, dispersion) are
    integrated, not plugged in. A Gaussian response is exact given them. Otherwise the best Gaussian
    for all effects is found by exact Newton steps (expectations of a row are one-dimensional);
    it places quadrature nodes for the effects of each group and a proposal for everything else,
    and importance sampling corrects what is left. Priors are independent: fixed effects
    :math:`N(0, s^2)`, sds half-normal, correlations LKJ(2). Their default scales are in the units
    of the data: 2.5 units of the response over the sd of the column.

    Priors of intercepts, of their sds and of correlations are stated at the means of the columns
    beside them, and those of products around these means, so that slopes depend neither on the unit
    nor on the zero of a column. Results are shown as in lme4: intercepts, their sds and
    correlations are those where the columns are zero.
    Where columns are not correlated, ``(1 + x || g)``, that is so at zero, as in lme4: such a model
    depends on where x has its zero.

    Parameters
    ----------
    formula : str
        ``"y ~ x + (1 + x | g)"``: as in lme4, with nested ``(1 | a/b)``, crossed ``(1 | a) +
        (1 | b)``, uncorrelated ``(1 + x || g)``, interactions, transformations, ``offset(x)``,
        and ``proportion(y, n)`` on the left of a binomial model. Every piece is used or refused.
        None needs an array X and ``groups`` in `fit`: all columns, an intercept for each group.
    likelihood : str or Likelihood
        ``"gaussian"``, ``"student-t"``, ``"lognormal"``, ``"gamma"``, ``"weibull"``, ``"beta"``,
        ``"bernoulli"``, ``"binomial"``, ``"poisson"``, ``"negative-binomial"`` and more
        (:doc:`/mixed` has the table), or one of your own (:class:`curvi.Likelihood`).
    link : str, optional
        ``"logit"``, ``"probit"``, ``"cloglog"``: of binary and binomial responses alone.
    prior_scale : float, optional
        Sd of the prior of every fixed effect but the intercept.
    intercept_prior_scale : float, optional
        Sd of the prior of the intercept, at the means of the columns.
    group_sd_scale : float, optional
        Scale of the half-normal prior of every group sd.
    noise_scale : float, optional
        Scale of the half-normal prior of the residual sd (default: the sd of the response).
    num_points : int, optional
        Points of importance sampling (default: 1024, or 256 where each passes over many rows).
    random_state : int
        Seed of the points and of draws.

    Attributes
    ----------
    coef_, coef_sd_ : arrays
        Posterior means and sds of the fixed effects, in the order of ``feature_names_``.
    posterior_ : MixedPosterior
        Weighted components: everything else is computed from them.
    converged_, message_, warnings_ : bool, str, tuple
        The verdict. ``relative_ess_`` and ``khat_`` are those of the importance weights.
    log_evidence_ : float
        Estimate of :math:`\log p(y)`.

    Raises
    ------
    InputError
        For formulas that do not parse, unknown columns, missing values, responses that the
        likelihood cannot give.

    Warns
    -----
    UserWarning
        For what the data cannot tell (a single group, constant or collinear columns, groups that
        are the same or have one row per level) and what may be meant otherwise (numbers as text,
        categories without an order, a zero far from the values of a column).
    ConvergenceWarning, MisfitWarning
        If the mode was not reached, or few points carry all the weight.

    Examples
    --------
    >>> import curvi, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> group = np.repeat(np.arange(12), 6)
    >>> x = rng.standard_normal(72)
    >>> y = 1.0 + 2.0 * x + rng.standard_normal(12)[group] + 0.5 * rng.standard_normal(72)
    >>> model = curvi.MixedModel("y ~ x + (1 | group)").fit({"y": y, "x": x, "group": group})
    >>> model.coef_.round(1).tolist()
    [1.1, 2.0]
    """

    def __init__(
        self,
        formula: str | None = None,
        *,
        likelihood: str = "gaussian",
        link: str | None = None,
        prior_scale: float | None = None,
        intercept_prior_scale: float | None = None,
        group_sd_scale: float | None = None,
        noise_scale: float | None = None,
        num_points: int | None = None,
        random_state: int = 0,
    ) -> None:
        self.formula = formula
        self.likelihood = likelihood
        self.link = link
        self.prior_scale = prior_scale
        self.intercept_prior_scale = intercept_prior_scale
        self.group_sd_scale = group_sd_scale
        self.noise_scale = noise_scale
        self.num_points = num_points
        self.random_state = random_state

    def fit(
        self, table: Any, y: Any = None, *, groups: Any = None, mesh: Any = None,
        checkpoint: Any = None,
    ) -> MixedModel:  # fmt: skip
        """Fit the posterior.

        Parameters
        ----------
        table : DataFrame, dict of columns, callable, or array (rows, features)
            A callable returns a fresh iterator of DataFrames (:func:`curvi.io.frames`). A Gaussian
            model reads them twice and keeps sums alone; of every other one the columns of the
            formula are kept, text as numbers. With an array, give ``y`` and ``groups``: its columns
            are x0, x1, ...
        y : array, optional
            The response, where the table is an array.
        groups : dict of arrays, optional
            Group columns by name, where the table is an array.
        mesh : jax.sharding.Mesh, optional
            Its processes share the points of the hyperparameters (:func:`curvi.data_mesh`): the
            work is NumPy's, so that several devices of one process bring nothing. Every process is
            given all rows.
        checkpoint : path or Checkpoint, optional
            A file from which the same call resumes.

        Returns
        -------
        self

        Raises
        ------
        Interrupted
            At Ctrl-C with a checkpoint, after what was computed has been saved.
        """
        with opened(locals()):
            if callable(table) and y is None and groups is None and self._likelihood().conjugate:
                other = clone(self)
                other.formula_ = str(self.formula or "")
                return self._take_over(other, *other._learn_parts(table))
            frame, text = self._frame(table, y, groups)
            other = clone(self)  # a failure must leave an earlier fit as it is
            other.formula_ = text
            return self._take_over(other, *other._learn(frame))

    def _take_over(
        self, other: MixedModel, design: Design, layout: Layout, summed: Summed | None = None
    ) -> MixedModel:
        """Become what another model fits, also where its warning is raised as an error."""
        try:
            other._fit(design, layout, summed)
        finally:
            if hasattr(other, "warnings_"):  # the last of what a fit leaves
                self._become(other)
        return self

    def _become(self, other: MixedModel) -> None:
        given = self.get_params(deep=False)
        for name in [name for name in vars(self) if name not in given]:
            delattr(self, name)
        self.__dict__.update({n: v for n, v in vars(other).items() if n not in given})

    def partial_fit(self, table: Any) -> MixedModel:
        """Update the posterior with new rows: what was known is the prior of what comes.

        The update is exact, because the earlier rows are kept: the result is the posterior of all
        rows so far, with the priors of the first fit. Groups may be new. The cost is that of all
        rows.

        Parameters
        ----------
        table : DataFrame or dict of columns
            New rows, with their response.

        Returns
        -------
        self
        """
        if not hasattr(self, "posterior_"):
            return self.fit(table)
        known = self._fitted_rows()
        new = checked(parse(self.formula_), as_frame(table), response=True)
        priors = zip(self._scales, self._origin, strict=True)
        stated = dict(zip(self.posterior_.names, priors, strict=True))
        before = self.posterior_
        other = clone(self)
        other.formula_ = self.formula_
        design, layout = other._learn(joined_frames(known, new), self._memory)
        given = zip(design.names, design.scales, design.origin, strict=True)
        kept = np.array([stated.get(name, (scale, origin)) for name, scale, origin in given])
        other._scales, other._origin = kept.reshape(-1, 2).T
        layout = replace(layout, factors=_blocks_of(design, before), extras=before.layout.extras)
        factors = tuple(
            replace(factor, blocks=blocks)
            for factor, blocks in zip(design.factors, layout.factors, strict=True)
        )
        design = replace(
            design, scales=other._scales, origin=other._origin, factors=factors
        )  # fmt: skip
        return self._take_over(other, design, layout)

    def _fit(self, design: Design, layout: Layout, summed: Summed | None) -> None:
        fitted = fit_design(
            design,
            layout,
            self._likelihood(),
            points=self.num_points,
            seed=validation.checked_seed(self.random_state),
            summed=summed,
        )
        self.n_rows_ = len(design.order) if summed is None else int(summed.sums.rows)
        self._publish(design, layout, fitted)

    def design(self, table: Any) -> tuple[Design, Layout]:
        """Rows, factors and priors that a table gives, without fitting.

        Parameters
        ----------
        table : DataFrame or dict of columns
            As for `fit`.

        Returns
        -------
        Design, Layout
            Rows in the order of the levels of the largest factor; hyperparameters and priors.
        """
        other = clone(self)  # a fitted model keeps its rows
        other.formula_ = str(self.formula)
        return other._learn(as_frame(table))

    def _frame(self, table: Any, y: Any, groups: Any) -> tuple[Any, str]:
        """The table, and the formula, which an array with groups has by default."""
        if callable(table) and y is None and groups is None:
            text = str(self.formula) if self.formula is not None else ""
            return collected(table(), column_names(parse(text))), text
        if y is None and groups is None:
            return as_frame(table), str(self.formula) if self.formula is not None else ""
        if not isinstance(groups, Mapping) or not groups or y is None:
            raise InputError("an array needs y and groups, a dict of group columns by name")
        X = np.asarray(table)
        if X.ndim != 2:
            raise InputError(f"X has shape {X.shape}; give (rows, features)")
        columns = {f"x{i}": X[:, i] for i in range(X.shape[1])}
        taken = {
            **columns,
            "y": np.asarray(y),
            **{str(k): np.asarray(v) for k, v in groups.items()},
        }
        bars = [f"(1 | {name})" for name in groups]
        text = self.formula or f"y ~ {' + '.join(['1', *columns, *bars])}"
        return as_frame(taken), text

    def _likelihood(self) -> Likelihood:
        return likelihood_of(self.likelihood, self.link, lambda kind: not kind.of_scale)

    def _check_parameters(self) -> None:
        self._likelihood()
        for name in ("prior_scale", "intercept_prior_scale", "group_sd_scale", "noise_scale"):
            if getattr(self, name) is not None:
                validation.positive_number(getattr(self, name), name)
        if (
            self.num_points is not None
            and validation.positive_integer(self.num_points, "num_points") < 64
        ):
            raise InputError(f"num_points is {self.num_points}; give at least 64")

    def _learn(self, frame: Any, before: Matrices | None = None) -> tuple[Design, Layout]:
        """Evaluate the formula on its table, and keep what later calls need."""
        self._check_parameters()
        formula = parse(self.formula_)
        part = checked(formula, frame, response=True)
        inspect_columns(formula, part, len(part))
        matrices = evaluate(formula, part)
        matrices = matrices if before is None else matrices.stated_as(before)
        require_width(matrices)
        inspect_origins(matrices, part)
        column = part[formula.response] if formula.response in part.columns else None
        likelihood = self._likelihood()
        y, trials, self.classes_ = response_of(
            likelihood, matrices.response.of(part), column, formula.response
        )
        require_variation(likelihood, y.min(), y.max(), formula.response)
        design, layout = build(formula, matrices, part, likelihood, (y, trials), self._given())
        self._columns, self._memory = stored_columns(part), matrices
        self._scales, self._origin = design.scales, design.origin
        return design, layout

    def _learn_parts(self, parts: Parts) -> tuple[Design, Layout, Summed]:
        """The same of a table in parts; instead of its columns, an example of them is kept."""
        self._check_parameters()
        found = learn(parse(self.formula_), parts, self._likelihood(), self._given())
        self._columns, self._memory = stored_columns(found.example), found.matrices
        self._scales, self._origin = found.design.scales, found.design.origin
        self.classes_, self._without_rows = (), True
        return found.design, found.layout, found.summed

    def _given(self) -> Scales:
        return Scales(
            self.prior_scale, self.intercept_prior_scale, self.group_sd_scale, self.noise_scale
        )

    def _publish(self, design: Design, layout: Layout, fitted: Fitted) -> None:
        bars = {bar.factor: bar.columns for bar in parse(self.formula_).bars}
        groupings = tuple(
            Grouping(factor.name, bars[factor.name], factor.labels, factor.blocks)
            for factor in design.factors
        )
        self.posterior_ = MixedPosterior(
            design.names, groupings, layout, fitted.theta, fitted.weights, fitted.rest,
            fitted.level_mean, fitted.level_covariance, fitted.alias,
        )  # fmt: skip
        self.feature_names_ = list(design.names)
        self.coef_, self.coef_sd_ = weighted_moments(self.posterior_.fixed(), fitted.weights)
        self.relative_ess_ = float(1 / np.sum(fitted.weights**2) / len(fitted.weights))
        self._log_ratios = fitted.log_ratios
        self.log_evidence_ = fitted.log_evidence
        self.n_iter_ = fitted.steps
        finite = bool(np.all(np.isfinite(self.coef_)) and np.isfinite(fitted.log_evidence))
        self.converged_ = bool(fitted.converged and finite)
        self.message_ = report.verdict(self.converged_, self.relative_ess_, fitted.method)
        stated = at_centres(self.posterior_.fixed(), design.within)
        if self._origin.any():
            stated[:, design.names.index(INTERCEPT)] += stated @ self._origin
        alarms = report.cautions(
            self.posterior_, stated, self._scales, fitted.log_ratios, self.relative_ess_
        )
        self.warnings_ = (*fitted.warnings, *alarms)
        if not self.converged_:
            warn_user(f"MixedModel: {self.message_}", ConvergenceWarning)
        for sentence in alarms:
            warn_user(MisfitWarning(sentence, None))

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        try:
            likelihood = self._likelihood()
        except InputError:
            return super().__repr__(N_CHAR_MAX)
        text = str(getattr(self, "formula_", "") or self.formula)
        return report.description(text, likelihood, self._priors())

    def _priors(self) -> list[tuple[str, str]]:
        return report.priors_of(self)


def _blocks_of(design: Design, before: MixedPosterior) -> tuple[tuple[Block, ...], ...]:
    """The blocks of a design with the scales of an earlier one; factors may have another order."""
    known = {
        (grouping.name, block.columns, block.correlated): block
        for grouping in before.groupings
        for block in grouping.blocks
    }
    return tuple(
        tuple(known.get((f.name, block.columns, block.correlated), block) for block in f.blocks)
        for f in design.factors
    )
