"""What a method minimises: a stochastic objective, how it is sampled, and its natural metric."""

from __future__ import annotations

import abc
from typing import Any

from jaxtyping import Array, Float

from curvi._core.compilation import Cost
from curvi._core.errors import InputError
from curvi._core.trees import Metric
from curvi.linalg import LinearMap, hessian
from curvi.solvers._layered import Layered


class Problem(abc.ABC):
    """``F(params) = E[value(params, sample)]``, without the arrays it reads.

    A problem compares and hashes by value: it is a static argument of the compiled loop, while
    everything large (data, fixed draws, keys) travels in ``resources``.
    """

    @property
    @abc.abstractmethod
    def fixed(self) -> bool:
        """Whether every step sees the same sample, so that F is a deterministic function."""

    @abc.abstractmethod
    def sample(self, resources: Any, step: Array, stream: int = 0, size: int | None = None) -> Any:
        """The sample of a step; different streams are independent, ``size`` is a batch size."""

    @abc.abstractmethod
    def value(self, params: Any, sample: Any) -> Float[Array, ""]:
        """The objective on a sample."""

    def linearise(self, params: Any, sample: Any) -> tuple[Array, Any, LinearMap]:
        """Value, gradient and Hessian on a sample, by the R-operator unless overridden."""
        return hessian(lambda p: self.value(p, sample), params)

    def gauss_newton(self, params: Any, sample: Any) -> tuple[Array, Any, LinearMap]:
        """Value, gradient and Gauss-Newton matrix on a sample, where the objective has one."""
        del params, sample
        raise InputError(
            "this objective does not say where its loss begins; a Gauss-Newton method needs "
            "fn.gauss_newton(params, batch, key), such as a curvi.vae.VAEObjective"
        )

    def layered(self) -> Layered:
        """The layers of the objective, where it shows them; samples are then (batch, key)."""
        raise InputError(
            "this objective does not show its layers; KFAC needs one that does, such as a "
            "curvi.vae.MLPObjective. Choose HessianFree, LBFGS or FirstOrder instead"
        )

    def cost(self, params: Any, resources: Any) -> Cost | None:
        """What one product costs, where that is known; it decides how to compile."""
        del params, resources
        return None

    def metric(self, params: Any) -> Metric | None:
        """Natural metric at the parameters, if the problem has one."""
        del params
        return None

    def project(self, params: Any, tangent: Any) -> Any:
        """Remove directions that do not change the objective (default: there are none)."""
        del params
        return tangent

    def to_raw(self, params: Any) -> Any:
        """The parameters in which DSVI and HFSGVI take their steps (default: the same)."""
        return params

    def from_raw(self, raw: Any) -> Any:
        """Inverse of :meth:`to_raw`."""
        return raw
