r"""What every bound with a diagonal R has in common on the host: prior, parameterisation, metric.

A likelihood gives its energy :math:`-\sum_i w_i E[\ell_i]` as a function of
:math:`(\mu, s = \sigma^2)`, with gradient and Hessian blocks. The map from the parameters
(a, rho) to (mu, s) acts coordinate by coordinate, with :math:`\mu = a` or, under the relevance
prior, :math:`\mu = a\,e^{\rho}`.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class SwitchingOff:
    """When a coefficient is switched off, and how rough a start may be."""

    # ratio of mean to sd below which a coefficient can be switched off at the end
    fading: float = 0.05
    sd_off: float = 1e-10  # its sd then
    rough_gain: float = 1.0  # nats that a start in one parameterisation may leave


SWITCHING_OFF = SwitchingOff()


class Energy(NamedTuple):
    """An energy in (mu, s): value, slopes, Hessian blocks (mu, mu), (mu, s) and (s, s).

    ``rank_one`` times the outer product of the gradient with itself is added to the Hessian.
    """

    value: float
    by_mean: np.ndarray
    by_variance: np.ndarray
    mean_mean: np.ndarray | None = None
    mean_variance: np.ndarray | None = None
    variance_variance: np.ndarray | None = None
    rank_one: float = 0.0


class Divergence(NamedTuple):
    """KL(q || prior), its gradient, and second derivatives of each coordinate with itself.

    A relevance prior has its own variances optimised.
    """

    value: float
    gradient: np.ndarray
    first: np.ndarray
    mixed: np.ndarray
    second: np.ndarray


class SecondOrder(NamedTuple):
    """A value, its gradient and its Hessian."""

    value: float
    gradient: np.ndarray
    hessian: np.ndarray


@dataclass(frozen=True)
class DiagonalBound(abc.ABC):
    """A negative ELBO as a function of the vector (a, rho).

    Derivatives, metric and steps are those of a parameterisation that each coordinate chooses for
    itself. Where some coordinates have a relevance prior, the prior variances of the others are
    maximised as well, but not below ``1 / precision``: these are never switched off.
    """

    relevance: bool | np.ndarray  # which coordinates of mu have a relevance prior
    precision: np.ndarray  # of the prior of the others, one per coordinate of mu
    has_all_rows: bool = field(default=True, kw_only=True)  # or only a share that stands for them
    well_known: float = field(default=4.0, kw_only=True)  # |mu| / sigma from which steps are in mu
    rough: float = field(default=0.0, kw_only=True)  # nats that may be left, if only for a start
    single: bool = field(default=False, kw_only=True)  # whether its Hessian is of float32 products

    @cached_property
    def relevant(self) -> np.ndarray:
        """Which coordinates have a relevance prior; the others have a normal one."""
        return np.broadcast_to(self.relevance, self.precision.shape)

    @property
    @abc.abstractmethod
    def work(self) -> float:
        """Multiplications of one Hessian, roughly."""

    def coarser(self) -> list[DiagonalBound]:
        """Bounds that lead to a good start, the cheapest first.

        Under a relevance prior the first steps are all in (alpha, rho): with parameterisations
        mixed from the beginning, uncentred columns can end in optima hundreds of nats worse.
        """
        return (
            [replace(self, well_known=np.inf, rough=SWITCHING_OFF.rough_gain)]
            if self.relevant.any()
            else []
        )

    def finer(self) -> Sequence[DiagonalBound]:
        """Cheaper bounds that are good enough near a good start."""
        return []

    @abc.abstractmethod
    def energy(self, mu: np.ndarray, sd: np.ndarray) -> float:
        """Minus the expected log likelihood."""

    @abc.abstractmethod
    def energy_second_order(self, mu: np.ndarray, sd: np.ndarray) -> Energy:
        """The same with its derivatives in (mu, s)."""

    def energy_first_order(self, mu: np.ndarray, sd: np.ndarray) -> Energy:
        """The same with its slopes; Hessian blocks may be left out."""
        return self.energy_second_order(mu, sd)

    def split(self, params: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first block, the mean, and the sds."""
        a, rho = _halves(params)
        sd = np.exp(rho)
        return a, np.where(self.relevant, a * sd, a), sd

    def join(self, mu: np.ndarray, sd: np.ndarray) -> np.ndarray:
        """Parameters of a mean and sds."""
        return np.concatenate([np.where(self.relevant, mu / sd, mu), np.log(sd)])

    def value(self, params: np.ndarray) -> float:
        """The negative ELBO."""
        _, mu, sd = self.split(params)
        return self.energy(mu, sd) + float(self._divergence(params).value)

    def in_mean(self, params: np.ndarray) -> np.ndarray:
        """Which coordinates take their steps in (mu, rho); the others take them in (alpha, rho).

        A coordinate that is switched off goes to sigma = 0 at a fixed alpha, which is a straight
        line in (alpha, rho) alone; one that is known well changes its sigma at a fixed mu, which
        would be a curve there, of ever shorter steps as alpha grows.
        """
        a, _ = _halves(params)
        return (np.abs(a) > self.well_known) | ~self.relevant

    def moved(self, params: np.ndarray, step: np.ndarray) -> np.ndarray:
        """The parameters after a step in the parameterisation of where it starts."""
        if not self.relevant.any():
            return params + step
        a, mu, _ = self.split(params)
        by_mean, by_rho = _halves(step)
        rho = params[a.size :] + by_rho
        curved = self.in_mean(params) & self.relevant
        return np.concatenate([np.where(curved, (mu + by_mean) * np.exp(-rho), a + by_mean), rho])

    def shortcut(self, params: np.ndarray) -> np.ndarray:
        """The limit of what is on its way to be switched off: alpha = 0 and sigma = 0, nearly.

        Newton steps come closer by a constant factor only, since the limit lies at infinity.
        """
        a, _, sd = self.split(params)
        fading = self.relevant & (np.abs(a) < SWITCHING_OFF.fading) & (sd > SWITCHING_OFF.sd_off)
        rho = np.where(fading, np.log(SWITCHING_OFF.sd_off), params[a.size :])
        return np.concatenate([np.where(fading, 0.0, a), rho])

    def metric(self, params: np.ndarray) -> np.ndarray:
        """The diagonal of the Fisher metric of q."""
        a, _, sd = self.split(params)
        in_mean = self.in_mean(params)
        return np.concatenate([np.where(in_mean, sd**-2.0, 1.0), np.where(in_mean, 2.0, 2 + a**2)])

    def first_order(self, params: np.ndarray) -> tuple[float, np.ndarray]:
        """Value, and gradient in the parameterisation of each coordinate."""
        _, mu, sd = self.split(params)
        energy, divergence = self.energy_first_order(mu, sd), self._divergence(params)
        gradient = self._energy_gradient(params, energy) + divergence.gradient
        return energy.value + float(divergence.value), gradient

    def second_order(self, params: np.ndarray) -> SecondOrder:
        """Value, gradient and Hessian in the parameterisation of each coordinate."""
        a, mu, sd = self.split(params)
        s, size = sd**2, a.size
        energy, divergence = self.energy_second_order(mu, sd), self._divergence(params)
        gradient = self._energy_gradient(params, energy)
        by_a, by_rho = self._mean_slopes(params)
        hessian = _pulled_back(energy, by_a, by_rho, 2 * s)
        if energy.rank_one:
            hessian += energy.rank_one * np.outer(gradient, gradient)
        curved = np.where(self.in_mean(params), 0.0, energy.by_mean)  # where mu = alpha exp(rho)
        first, second = np.arange(size), np.arange(size, 2 * size)
        hessian[first, first] += divergence.first
        hessian[first, second] += divergence.mixed + curved * sd
        hessian[second, first] += divergence.mixed + curved * sd
        hessian[second, second] += divergence.second + curved * mu + 4 * energy.by_variance * s
        value = energy.value + float(divergence.value)
        return SecondOrder(value, gradient + divergence.gradient, hessian)

    def _mean_slopes(self, params: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slopes of mu in the two coordinates of its parameterisation."""
        _, mu, sd = self.split(params)
        in_mean = self.in_mean(params)
        return np.where(in_mean, 1.0, sd), np.where(in_mean, 0.0, mu)

    def _energy_gradient(self, params: np.ndarray, energy: Energy) -> np.ndarray:
        """The slopes of an energy, from (mu, s) to the parameterisation of each coordinate."""
        by_a, by_rho = self._mean_slopes(params)
        _, _, sd = self.split(params)
        slope = energy.by_mean
        return np.concatenate([slope * by_a, slope * by_rho + 2 * sd**2 * energy.by_variance])

    def _divergence(self, params: np.ndarray) -> Divergence:
        a, mu, sd = self.split(params)
        rho, on, in_mean = params[a.size :], self.relevant, self.in_mean(params)
        terms = np.empty((6, a.size))
        terms[:, on] = _relevance_terms(a[on], sd[on], in_mean[on])
        adapts = bool(on.any())
        terms[:, ~on] = _normal_terms(self.precision[~on], mu[~on], sd[~on], rho[~on], adapts)
        value, by_mean, by_rho, *second = terms
        return Divergence(float(value.sum()), np.concatenate([by_mean, by_rho]), *second)


Terms = tuple[
    np.ndarray, ...
]  # value, slopes in (mu, rho), second derivatives in the order of both


def _relevance_terms(a: np.ndarray, sd: np.ndarray, in_mean: np.ndarray) -> Terms:
    """Of ``log(1 + alpha^2) / 2``, in the parameterisation of each coordinate."""
    share, square = a / (1 + a**2), (1 + a**2) ** -2.0
    return (
        0.5 * np.log1p(a**2),
        np.where(in_mean, share / sd, share),
        np.where(in_mean, -a * share, 0.0),
        (1 - a**2) * square * np.where(in_mean, sd**-2.0, 1.0),
        np.where(in_mean, -2 * a * square / sd, 0.0),
        np.where(in_mean, 2 * a**2 * square, 0.0),
    )


def _normal_terms(
    precision: np.ndarray, mu: np.ndarray, sd: np.ndarray, rho: np.ndarray, adapts: bool
) -> Terms:
    """Of the divergence from a normal prior, in (mu, rho); one that adapts can be wider."""
    s = sd**2
    moment = s + mu**2
    wider = precision * moment > 1 if adapts else np.zeros(mu.size, bool)
    precision = np.where(wider, 1 / np.maximum(moment, 1 / precision), precision)
    bend = np.where(wider, 2 * precision**2, 0.0)  # 1 / moment falls as the moment grows
    return (
        0.5 * (precision * moment - 1 - np.log(precision)) - rho,
        precision * mu,
        precision * s - 1,
        precision - bend * mu**2,
        -bend * mu * s,
        2 * precision * s - bend * s**2,
    )


def _halves(vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What belongs to the means, and to the scales; np.split takes ten times as long."""
    size = vector.size // 2
    return vector[:size], vector[size:]


def _pulled_back(
    energy: Energy, by_a: np.ndarray, by_rho: np.ndarray, widen: np.ndarray
) -> np.ndarray:
    """The Hessian blocks of an energy, from (mu, s) to the parameterisation of each coordinate."""
    first = energy.mean_mean
    if first is None:
        raise RuntimeError("this energy came without its Hessian")
    mixed, corner = first * by_rho[None, :], by_rho[:, None] * first * by_rho[None, :]
    if energy.mean_variance is not None and energy.variance_variance is not None:
        mixed += energy.mean_variance * widen[None, :]
        slant = by_rho[:, None] * energy.mean_variance * widen[None, :]
        corner += slant + slant.T + widen[:, None] * energy.variance_variance * widen[None, :]
    side, size = by_a[:, None] * mixed, by_a.size
    hessian = np.empty((2 * size, 2 * size))
    hessian[:size, :size] = by_a[:, None] * first * by_a[None, :]
    hessian[:size, size:], hessian[size:, :size], hessian[size:, size:] = side, side.T, corner
    return hessian
