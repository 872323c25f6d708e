r"""What every likelihood of a row gives, and how it follows from a log density alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from scipy import optimize

from curvi._core.errors import InputError
from curvi._core.memory import row_slices
from curvi._core.quadrature import gauss_hermite, trapezoid
from curvi._core.trees import precision_of

ORDERS = (0, 1, 2)  # of derivatives
NOTHING = np.zeros(0)  # hyperparameters of a likelihood that has none
_NUMBERS_AT_ONCE = 2**20  # nodes of quadrature rules
# Numbers of nodes that are exact to 1e-8, by the sd of a predictor over the distance from the real
# line within which the log density is analytic: few of Gauss-Hermite, then equally spaced ones.
_FEW, _FEW_TO = 20, 0.32
_SPACED = ((1.0, 81), (4.0, 321), (math.inf, 1281))


class RowTerms(NamedTuple):
    """``E[log p(y | t)]`` per row, its slopes in (m, v), and its second derivatives.

    None stands for second derivatives that are zero in every row, or not asked for.
    """

    value: Any
    by_mean: Any
    by_variance: Any
    mean_mean: Any
    mean_variance: Any = None
    variance_variance: Any = None


@dataclass(frozen=True)
class Extra:
    """A positive hyperparameter of the likelihood, and its prior.

    ``"half-normal"`` with a scale, or ``"gamma"`` with shape two and a rate of one over the scale.
    """

    name: str
    scale: float
    prior: str = "half-normal"


class Likelihood:
    r"""The distribution of a response given its linear predictor, :math:`p(y \mid t)`.

    Everything follows from the log density: slopes by automatic differentiation, expectations
    :math:`E[\ell], E[\ell'], E[\ell'']` for a Gaussian predictor :math:`t \sim N(m, v)` by
    quadrature. The likelihoods of :mod:`curvi.likelihoods` have closed forms in their place.

    Parameters
    ----------
    log_density : callable
        ``log_density(t, y)``, the log density of one response, written with :mod:`jax.numpy`; a
        function of numbers that can be differentiated twice in t.
    mean : callable, optional
        ``mean(t)``, the expected response, for arrays; predictions need it.
    sample : callable, optional
        ``sample(t, rng)``, new responses by a NumPy generator; predictive draws need it.
    name : str
        What summaries call it.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import curvi
    >>> cauchy = curvi.Likelihood(lambda t, y: -jnp.log1p((y - t) ** 2), mean=lambda t: t)
    >>> value, slope, curvature = cauchy.expected(0.0, 0.5, 1.0)
    >>> print(f"{value:.4f}")
    -0.7537
    """

    name: str = ""
    link: str = ""
    links: ClassVar[tuple[str, ...]] = ()
    extras: ClassVar[tuple[Extra, ...]] = ()
    conjugate: ClassVar[bool] = False  # a Gaussian predictor has a Gaussian posterior
    location_scale: ClassVar[bool] = False  # the predictor has the unit of the response
    takes_trials: ClassVar[bool] = False
    binary: ClassVar[bool] = False
    whole_numbers: ClassVar[bool] = False
    positive: ClassVar[bool] = False
    of_scale: ClassVar[bool] = False  # the predictor says how large |y| is, not where y lies
    label: ClassVar[str] = "expected value"  # of what `mean` gives
    row_effects: ClassVar[str] = ""  # what effects of single rows cannot be told apart from
    width: float = math.pi  # distance from the real line within which l is analytic

    def __init__(
        self,
        log_density: Callable[[Any, Any], Any],
        *,
        mean: Callable[[Any], Any] | None = None,
        sample: Callable[[Any, np.random.Generator], Any] | None = None,
        name: str = "custom",
    ) -> None:
        if not callable(log_density):
            raise InputError(f"log_density is {log_density!r}; give a function of (t, y)")
        self._log_density, self._mean, self._sample = log_density, mean, sample
        self.name = name

    def __repr__(self) -> str:
        return f"Likelihood({self.name!r})"

    def __deepcopy__(self, memo: Any) -> Likelihood:
        return self  # nothing in it changes

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_compiled"}

    @property
    def title(self) -> str:
        """Name and link."""
        return f"{self.name}, {self.link} link" if self.link else self.name

    @property
    def identity(self) -> str:
        """What checkpoints compare: the name and link, and the program of a user's function."""
        program = jax.make_jaxpr(self._log_density)(0.0, 0.0)
        constants = [np.asarray(c).tobytes().hex() for c in program.consts]
        return f"{self.title} {program} {constants}"

    @cached_property
    def _compiled(self) -> Any:
        """The log density with two derivatives in t, for arrays of t and y."""
        first = jax.grad(self._log_density)
        second = jax.grad(first)
        return jax.jit(jax.vmap(lambda t, y: (self._log_density(t, y), first(t, y), second(t, y))))

    def terms(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, ...]:
        """The log density and its two derivatives in t; arguments broadcast."""
        t, y = np.broadcast_arrays(np.asarray(t, np.float64), np.asarray(y, np.float64))
        out = np.empty((3, t.size))
        flat = t.ravel(), y.ravel()
        for part in row_slices(t.size, _NUMBERS_AT_ONCE):
            count = flat[0][part].size
            # lengths of few kinds, each of which is compiled once
            extended = (np.resize(x[part], 1 << (count - 1).bit_length()) for x in flat)
            with precision_of(np.float64):
                out[:, part] = np.stack(self._compiled(*extended))[:, :count]
        return tuple(out.reshape(3, *t.shape))

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """``log p(y | t)``; arguments broadcast."""
        return self.terms(t, y)[0]

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """First and second derivative of the log density in t."""
        return self.terms(t, y)[1:]

    def mean(self, t: Any, trials: Any = 1.0) -> Any:
        """``E[y | t]``."""
        if self._mean is None:
            raise InputError(f"the likelihood {self.name!r} has no mean; give it mean=function(t)")
        return np.asarray(self._mean(t))

    def mean_shift(self, extra: Any) -> Any:
        """What hyperparameters add to the predictor before `mean`; zero for most."""
        return 0.0

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """New responses."""
        if self._sample is None:
            raise InputError(
                f"the likelihood {self.name!r} has no draws; give it sample=function(t, rng)"
            )
        return np.asarray(self._sample(t, rng))

    def expected(
        self, m: Any, v: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING,
        orders: Sequence[int] = ORDERS,
    ) -> tuple[Any, ...]:  # fmt: skip
        """``E[l]``, ``E[l']`` and ``E[l'']`` for ``t ~ N(m, v)``: derivatives of these orders."""
        m, v, y, trials = np.broadcast_arrays(*(np.asarray(x, float) for x in (m, v, y, trials)))
        sd, extra = np.sqrt(v), np.asarray(extra)
        relative = sd / self._width(extra)
        if not np.any(relative > _FEW_TO):
            return self._averaged(gauss_hermite(_FEW), m, sd, y, trials, extra, orders=orders)
        out = np.empty((len(orders), m.size))
        each = np.broadcast_to(extra, (*m.shape, extra.shape[-1])).reshape(m.size, -1)
        flat = (*(x.ravel() for x in (m, sd, y, trials)), each)
        rules = [(_FEW_TO, gauss_hermite(_FEW))]
        rules += [(limit, trapezoid(count)) for limit, count in _SPACED]
        band = np.searchsorted([limit for limit, _ in rules], np.ravel(relative))
        for index, (_, rule) in enumerate(rules):
            rows = np.flatnonzero(band == index)
            for part in row_slices(rows.size, max(1, _NUMBERS_AT_ONCE // len(rule[0]))):
                at = rows[part]
                out[:, at] = self._averaged(rule, *(x[at] for x in flat), orders=orders)
        return tuple(out.reshape(len(orders), *m.shape))

    def _width(self, extra: Any) -> Any:
        """`width`, which may depend on hyperparameters."""
        return self.width

    def _averaged(
        self, rule: tuple[np.ndarray, np.ndarray], m: Any, sd: Any, y: Any, trials: Any, extra: Any,
        *, orders: Sequence[int],
    ) -> tuple[Any, ...]:  # fmt: skip
        nodes, weights = rule
        t = m[..., None] + sd[..., None] * nodes
        found = self.terms(t, y[..., None], trials[..., None], extra[..., None, :])
        return tuple(found[order] @ weights for order in orders)

    def row_terms(self, mean: Any, variance: Any, y: Any, *, second: bool = True) -> RowTerms:
        """Expectations and their derivatives in (m, v), of unit noise where there is noise.

        By equations (1)-(3) of the paper; without ``second`` those of the mean alone.
        """
        orders = range(5) if second else range(3)
        e = self.expected(mean, variance, y, orders=orders)
        more = (0.5 * e[3], 0.25 * e[4]) if second else ()
        return RowTerms(e[0], e[1], 0.5 * e[2], e[2], *more)

    def expected_mean(self, m: Any, v: Any, trials: Any = 1.0) -> Any:
        """``E[mean(t)]`` for ``t ~ N(m, v)``: the expected response."""
        return self.moments(m, v, trials)[0]

    def moments(self, m: Any, v: Any, trials: Any = 1.0) -> tuple[Any, Any]:
        """``E[mean(t)]`` and ``E[mean(t)^2]`` for ``t ~ N(m, v)``."""
        nodes, weights = trapezoid(_SPACED[0][1])
        at = np.asarray(m)[..., None] + np.sqrt(v)[..., None] * nodes
        values = self.mean(at, np.asarray(trials)[..., None])
        return values @ weights, values**2 @ weights

    def level_sums(self, t: Any, y: Any, trials: Any, extra: Any, starts: np.ndarray) -> Any:
        """Log densities summed over the rows of each level.

        ``t`` is (points, rows, nodes); it may be overwritten.
        """
        values = self.log_density(t, y[:, None], trials[:, None], extra)
        return np.add.reduceat(values, starts, axis=1)

    def units(self, y: np.ndarray, trials: Any = 1.0) -> tuple[float, float]:
        """Unit and centre of the linear predictor, for default priors."""
        return 1.0, self.predictor_start(y, trials)

    def predictor_start(self, y: np.ndarray, trials: Any = 1.0) -> float:
        """The linear predictor that fits all responses best."""
        found = optimize.minimize_scalar(lambda t: -float(self.terms(t, y)[0].sum()))
        return float(found.x)

    def extra_start(self, y: np.ndarray) -> list[float]:
        """Starting values of the extras."""
        return []

    def sites(
        self, y: np.ndarray, offset: Any = 0.0, trials: Any = 1.0, extra: Any = NOTHING
    ) -> tuple[np.ndarray, np.ndarray]:
        """Precision and linear term of the Gaussian that stands for each response at first.

        It is a function of what is added to the offset.
        """
        base = np.full(len(y), self.predictor_start(y, trials))
        _, slope, curved = self.expected(base, np.full(len(y), 0.5), y, trials, extra)
        precision = np.maximum(-curved, np.finfo(float).eps)
        return precision, slope + precision * (base - offset)

    def unsuitable(self, y: np.ndarray, trials: Any = 1.0) -> tuple[np.ndarray, str]:
        """Which responses it cannot give, and what it needs."""
        return np.zeros(np.shape(y), bool), "numbers"

    def check(self, y: np.ndarray, trials: Any = 1.0, what: str = "y", first: int = 0) -> None:
        """Refuse responses that this likelihood cannot give; ``first`` is the first row."""
        wrong, need = self.unsuitable(y, trials)
        wrong = wrong & ~np.isnan(y)  # which is missing
        if np.any(wrong):
            row = int(np.argmax(wrong))
            raise InputError(
                f"{what}[{first + row}] is {y[row]:g}; likelihood={self.name!r} needs {need}"
            )


def chosen(orders: Sequence[int], *terms: Callable[[], Any]) -> tuple[Any, ...]:
    """Derivatives of the orders asked for; the last one given is that of all higher orders."""
    return tuple(terms[min(order, len(terms) - 1)]() for order in orders)


class ClosedForm(Likelihood):
    """A likelihood whose log density and slopes are formulas, for NumPy and for JAX."""

    identity = Likelihood.title

    def terms(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, ...]:
        """The log density and its two derivatives in t; arguments broadcast."""
        return (self.log_density(t, y, trials, extra), *self.slopes(t, y, trials, extra))
