"""``curvi.LatentGaussian``: a sum of components behind a likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from curvi._core import validation
from curvi._core.errors import InputError, NotConvergedWarning, warn_user
from curvi._core.memory import require_memory
from curvi.diagnostics import summary_table
from curvi.engine import belongs, hooks_for, opened
from curvi.latent._assembly import Assembly
from curvi.latent._component import Component
from curvi.latent._gap import Gap
from curvi.latent._integral import Integration
from curvi.latent._lattice import Lattice
from curvi.latent._mixtures import Band
from curvi.latent._posterior import LatentDraws, LatentPosterior
from curvi.latent._sites import SiteModel
from curvi.latent._whitened import JointDraws, Trajectories, run_chains
from curvi.likelihoods import Likelihood, likelihood_of


class LatentGaussian(BaseEstimator):
    r"""Effects that are Gaussian given a few hyperparameters, seen through any likelihood.

    .. math::

        y_i \sim p(y_i \mid t_i), \qquad t = \text{offset} + \sum_c A_c u_c, \qquad
        u_c \sim N\big(m_c, Q_c(\theta)^{-1}\big)

    Given :math:`\theta`, the best Gaussian for all effects follows from one-dimensional
    expectations and a sparse factorisation; of Gaussian responses it is exact. Up to four
    hyperparameters are integrated over a lattice, more of them by importance sampling.

    Parameters
    ----------
    components : sequence of Component
        What adds up to the predictor: :class:`curvi.latent.Fixed`,
        :class:`curvi.latent.RandomWalk`, :class:`curvi.latent.FromPrecision` for a precision of
        your own, and others of :mod:`curvi.latent`. There is no intercept but the one you give.
    likelihood : str or Likelihood
        A name of the table (:doc:`/mixed` has it), or one of your own (:class:`curvi.Likelihood`).
    link : str, optional
        ``"logit"``, ``"probit"``, ``"cloglog"``: of binary and binomial responses alone.
    prior_scales : dict, optional
        Scales of the priors of hyperparameters of the likelihood, by name, in place of the
        defaults: the sd of the responses for a ``"residual sd"``, and otherwise one.
    random_state : int
        Seed of the points of importance sampling.

    Attributes
    ----------
    posterior_ : LatentPosterior
        Weighted Gaussians, from which everything else is computed.
    hyperparameters_ : dict
        Posterior mean and sd of every hyperparameter, by name.
    log_evidence_ : float
        Log marginal likelihood of Gaussian responses, a lower bound of it otherwise.
    lattice_ : Lattice
        Points and weights of the integral.
    converged_, message_ : bool, str
        The verdict.

    Examples
    --------
    Counts in twelve places in a row, each like its neighbours:

    >>> import numpy as np
    >>> import curvi
    >>> from curvi.latent import Fixed, FromPrecision
    >>> counts = np.asarray([4, 6, 5, 9, 12, 10, 14, 9, 7, 6, 3, 4])
    >>> step = np.diff(np.eye(12), axis=0)
    >>> places = FromPrecision(np.eye(12), step.T @ step, "place", constraints=np.ones((1, 12)))
    >>> level = Fixed(np.ones((12, 1)), "level", prior_scale=5.0)
    >>> model = curvi.LatentGaussian([level, places], likelihood="poisson").fit(counts)
    >>> model.predict().mean.round(0).astype(int).tolist()
    [5, 6, 7, 8, 10, 10, 11, 9, 7, 6, 5, 5]
    """

    hyperparameters_: dict[str, tuple[float, float]]
    log_evidence_: float
    lattice_: Lattice
    posterior_: LatentPosterior

    def __init__(
        self,
        components: Sequence[Component],
        *,
        likelihood: str | Likelihood = "gaussian",
        link: str | None = None,
        prior_scales: dict[str, float] | None = None,
        random_state: int = 0,
    ) -> None:
        self.components = components
        self.likelihood, self.link = likelihood, link
        self.prior_scales, self.random_state = prior_scales, random_state

    def fit(
        self, y: Any, *, offset: Any = 0.0, trials: Any = 1.0, checkpoint: Any = None,
        time_budget: float | None = None, progress: bool = False,
    ) -> LatentGaussian:  # fmt: skip
        """Find the posterior of effects and hyperparameters.

        Parameters
        ----------
        y : array, shape (rows,)
            Responses; NaN where there is none.
        offset : float or array, shape (rows,)
            Added to the predictors.
        trials : float or array, shape (rows,)
            Of binomial responses.
        checkpoint : path or Checkpoint, optional
            A file from which the same call resumes.
        time_budget : float, optional
            Seconds after which the best hyperparameters until then are taken as they are.
        progress : bool
            Whether to draw a bar, if standard error is a terminal.

        Returns
        -------
        self

        Raises
        ------
        InputError
            For responses that the likelihood cannot give, and arrays that do not fit.
        Interrupted
            At Ctrl-C, with the attributes of what was found until then.

        Warns
        -----
        NotConvergedWarning
            If the hyperparameters were not integrated: their tails are cut off for want of points,
            importance weights are of no use, effects did not converge, or time was up.
        """
        with opened(locals()), hooks_for(progress):
            seed = validation.checked_seed(self.random_state)
            model = self._model(y, offset, trials)
            arrays = [(c.A.data, c.A.indices, c.A.indptr) for c in model.assembly.components]
            first = model.assembly.precision(model.assembly.start()[None]).values
            identity = (
                f"{list(self.components)} {model.likelihood.identity} {model.assembly.extras}"
            )
            belongs(identity, (model.y, model.offset, model.trials, arrays, first))
            found = Integration()(model, seed=seed)
            self.lattice_, self.posterior_ = found.lattice, found.posterior(model)
            self.log_evidence_ = found.lattice.log_integral
            self.hyperparameters_ = self.posterior_.hyperparameters()
            self.converged_ = found.lattice.complete
            self.message_ = _message(found.lattice, exact=model.likelihood.conjugate)
            found.require_whole(self)
            if not self.converged_:
                warn_user(NotConvergedWarning(self.message_, self))
            return self

    def _model(self, y: Any, offset: Any, trials: Any) -> SiteModel:
        """Validated rows, likelihood and components."""
        likelihood = likelihood_of(self.likelihood, self.link)
        y = validation.real_numbers(y, "y")
        if y.ndim != 1:
            raise InputError(f"y has shape {y.shape}; give one response per row")
        seen = ~np.isnan(y)
        if not seen.any():
            raise InputError("y holds no response; at least one is needed")
        if np.isinf(y).any():
            raise InputError(f"y[{int(np.argmax(np.isinf(y)))}] is infinite; NaN is a missing one")
        given = _known(len(y), "the rows are", offset=offset, trials=trials)
        likelihood.check(y, given["trials"])
        extras = self._extras(likelihood, y[seen], given["trials"][seen])
        assembly = Assembly(self.components, extras, likelihood.extra_start(y[seen]))
        if assembly.A.shape[0] != len(y):
            raise InputError(f"y has {len(y)} rows and the components {assembly.A.shape[0]}")
        assembly.require_separate_levels(seen)
        return SiteModel(assembly, likelihood, y, given["offset"], given["trials"])

    def _extras(self, likelihood: Likelihood, y: np.ndarray, trials: np.ndarray) -> tuple[Any, ...]:
        """Hyperparameters of the likelihood with their priors."""
        scales = self.prior_scales or {}
        names = tuple(extra.name for extra in likelihood.extras)
        for name in scales:
            validation.one_of(name, names, "a name in prior_scales")
        unit = likelihood.units(y, trials)[0] if likelihood.location_scale else 1.0
        default = {"residual sd": unit}
        return tuple(
            replace(extra, scale=validation.positive_number(
                scales.get(extra.name, extra.scale * default.get(extra.name, 1.0)),
                f"prior_scales[{extra.name!r}]"))
            for extra in likelihood.extras
        )  # fmt: skip

    def _fitted(self) -> LatentPosterior:
        if not hasattr(self, "posterior_"):
            raise InputError("this LatentGaussian is not fitted yet; call fit(y) first")
        return self.posterior_

    def effects(self, name: str, *, interval: float = 0.9) -> Band:
        """What is known about the effects of a component, in the order of its labels.

        Parameters
        ----------
        name : str
            Of the component.
        interval : float
            Probability of the band.

        Returns
        -------
        Band
            Mean, sd and a central interval of each.
        """
        validation.probability_of_interval(interval)
        posterior = self._fitted()
        assembly = posterior.model.assembly
        names = tuple(c.name for c in assembly.components)
        validation.one_of(name, names, "name")
        return posterior.effects(assembly.effects[names.index(name)], interval=interval)

    def predict(
        self, data: Mapping[str, Any] | None = None, *, offset: Any = 0.0, trials: Any = 1.0,
        interval: float = 0.9, response: bool = True,
    ) -> Band:  # fmt: skip
        """Mean responses of new rows, or of those of the fit.

        Parameters
        ----------
        data : dict, optional
            By the name of every component what its ``columns_for`` takes: columns of fixed
            effects, steps of a series, a matrix A of one with a given precision.
        offset, trials : float or array
            Of new rows.
        interval : float
            Probability of the band.
        response : bool
            The expected response; otherwise the linear predictor.

        Returns
        -------
        Band
            Mean, sd and a central interval of each row.
        """
        validation.probability_of_interval(interval)
        posterior = self._fitted()
        if data is None:
            return posterior.predictors(interval=interval, response=response)
        components = posterior.model.assembly.components
        lost = [c.name for c in components if c.name not in data]
        if lost or len(data) > len(components):
            wanted = ", ".join(repr(c.name) for c in components)
            raise InputError(f"data needs columns for the components {wanted}, and no others")
        columns = [c.columns_for(data[c.name]) for c in components]
        rows = {c.shape[0] for c in columns}
        if len(rows) > 1:
            raise InputError(f"the columns of new rows differ in length: {sorted(rows)}")
        count = rows.pop()
        wide = [c.with_rows(more) for c, more in zip(components, columns, strict=True)]
        given = _known(count, "the new rows are", offset=offset, trials=trials)
        if (given["trials"] <= 0).any():
            raise InputError("trials has an entry of zero or less; each row has at least one")
        longer, old = posterior.extended(wide, **given), len(posterior.model.y)
        return longer.predictors(slice(old, None), interval=interval, response=response)

    def sample(self, num_draws: int, *, seed: int = 0) -> LatentDraws:
        """Draws of hyperparameters, effects and the predictors of the rows.

        Parameters
        ----------
        num_draws : int
            How many.
        seed : int
            All randomness follows from it.
        """
        posterior = self._fitted()
        validation.positive_integer(num_draws, "num_draws")
        size = 16 * num_draws * sum(posterior.model.assembly.A.shape)
        require_memory(size, f"sample({num_draws})", "draw fewer at a time")
        return posterior.draw(num_draws, np.random.default_rng(validation.checked_seed(seed)))

    def to_arviz(self, num_draws: int = 1000, *, seed: int = 0) -> Any:
        """Draws, the responses and the log likelihood of every row, for ArviZ.

        Parameters
        ----------
        num_draws : int
            How many, in one chain.
        seed : int
            All randomness follows from it.

        Returns
        -------
        arviz.InferenceData or xarray.DataTree
            Hyperparameters by name and the effects of every component, so that ``arviz.summary``
            and ``arviz.loo`` work.

        Raises
        ------
        MissingDependencyError
            If ArviZ is not installed.
        """
        from curvi.interop import arviz_of_draws

        draws, posterior = self.sample(num_draws, seed=seed), self._fitted()
        assembly, seen = posterior.model.assembly, posterior.model.seen
        named = assembly.natural(draws.theta)
        dims, coords = {}, {}
        for component, some in zip(assembly.components, assembly.effects, strict=True):
            name = component.name if component.name not in named else f"{component.name} effects"
            named[name] = draws.effects[:, some]
            dims[name], coords[f"{name} label"] = [f"{name} label"], component.labels()
        return arviz_of_draws(
            named,
            log_likelihood={"y": posterior.log_likelihood(draws)[:, seen]},
            observed={"y": posterior.model.y[seen]},
            dims=dims,
            coords=coords,
        )

    def hmc(self, *, trajectories: Trajectories | None = None, seed: int = 0) -> JointDraws:
        """Draws of the joint posterior, moments corrected by them, and by how many sds that is.

        Parameters
        ----------
        trajectories : Trajectories, optional
            Numbers of chains, draws and kicks.
        seed : int
            All randomness follows from it.
        """
        posterior = self._fitted()
        model, theta, fitted = posterior.model, posterior.points, posterior.fitted
        gaps = Gap()(model, theta, fitted)
        by_bound = posterior.weights * np.exp(gaps.min() - gaps)
        given = model, theta, by_bound / by_bound.sum(), fitted, gaps
        return run_chains(*given, rule=trajectories, seed=validation.checked_seed(seed))

    def summary_table(self, *, interval: float = 0.9) -> Any:
        """Hyperparameters and fixed effects with intervals, as a DataFrame."""
        import pandas as pd

        validation.probability_of_interval(interval)
        posterior = self._fitted()
        rows = {
            name: (*moments, *posterior.hyperparameter_interval(name, interval))
            for name, moments in self.hyperparameters_.items()
        }
        assembly = posterior.model.assembly
        for component, some in zip(assembly.components, assembly.effects, strict=True):
            if not component.names:
                band = posterior.effects(some, interval=interval)
                rows |= dict(zip(component.labels(), zip(*band, strict=True), strict=True))
        columns = ["mean", "sd", "lower", "upper"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns)

    def summary(self) -> str:
        """The verdict, what was fitted, and a row for every hyperparameter and fixed effect."""
        model, table = self._fitted().model, self.summary_table()
        parts = ", ".join(f"{c.name} ({c.size})" for c in model.assembly.components)
        return summary_table(
            verdict=("converged" if self.converged_ else "NOT CONVERGED", self.message_),
            facts={
                "likelihood": model.likelihood.title,
                "components": parts,
                "rows": f"{len(model.y)}, {len(model.seen)} of them with a response",
                "log evidence": f"{self.log_evidence_:.2f}",
            },
            names=[str(name) for name in table.index],
            columns={name: table[name].to_numpy() for name in table},
        )


def _known(count: int, what: str, **given: Any) -> dict[str, np.ndarray]:
    """What is known of every row: one number for all, or one for each."""
    found = {}
    for name, value in given.items():
        array = validation.real_numbers(value, name)
        if array.ndim and array.shape != (count,):
            raise InputError(f"{name} has shape {array.shape}; {what} {count}")
        validation.refuse_non_finite(array, name, "it is known for every row")
        found[name] = np.broadcast_to(array, count).astype(np.float64)
    return found


def _message(lattice: Lattice, *, exact: bool) -> str:
    """How the answer was found, and what is approximate in it."""
    how = (
        f"integrated over a lattice of {len(lattice.points)} points"
        if lattice.khat is None
        else f"importance-sampled: {1 / np.sum(lattice.weights**2):.0f} effective points, Pareto k "
        f"{lattice.khat:.2f}"
    )
    effects = "exact" if exact else "the best Gaussian, whose bound was corrected to second order,"
    if lattice.shortcoming:
        return f"{lattice.shortcoming}; give scales of priors that say more, or more time"
    return f"Effects are {effects} given the hyperparameters, which were {how}."
