"""What can be done with trained networks: codes, images, bounds; and networks of one's own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.memory import require_memory
from curvi.plots import plot_codes
from curvi.vae import _use as use
from curvi.vae._mapped import on_disk, refuse_blocks, row_parts
from curvi.vae._objective import Rows, VAEObjective


class Uses:
    """Methods of whatever has trained networks.

    A subclass says which networks (``_networks``), validates rows (``_given``) and conditions
    (``_conditions``), and knows the shapes of codes and rows.
    """

    def _networks(self) -> Any:
        """Objective, parameters and seed."""
        raise NotImplementedError

    def _given(self, X: Any, condition: Any) -> tuple[Any, Rows]:
        """Networks that take the rows as they are, missing entries included, and the rows."""
        raise NotImplementedError

    def _conditions(self, condition: Any, rows: int) -> np.ndarray | None:
        """A row of conditions for every row."""
        raise NotImplementedError

    def _code_shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    def _row_size(self) -> int:
        """Entries of a row."""
        raise NotImplementedError

    def _shaped(self, images: np.ndarray) -> np.ndarray:
        """Rows in the shape in which they were given."""
        return images

    def encode(self, X: Any, condition: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Means and sds of the codes, q(z | x), each (rows, latent)."""
        found: tuple[np.ndarray, np.ndarray] = self._each(use.codes_of, X, condition)
        return found

    def _each(self, compute: Any, X: Any, condition: Any, **options: int) -> Any:
        """A function of networks and rows; rows on disk are read some at a time."""
        source = on_disk(X)
        if source is None:
            return compute(*self._given(X, condition), **options)
        parts = [
            compute(*self._given(source[part], None if condition is None else condition[part]),
                    **options)
            for part in row_parts(source)
        ]  # fmt: skip
        return jax.tree.map(lambda *pieces: np.concatenate(pieces), *parts)

    def transform(self, X: Any, condition: Any = None) -> np.ndarray:
        """Posterior means of the codes, (rows, latent)."""
        return self.encode(X, condition)[0]

    def inverse_transform(self, Z: Any, condition: Any = None) -> np.ndarray:
        """Mean images E[x | z] of codes."""
        model = self._networks()
        Z = np.asarray(Z, use.dtype_of(model))
        shape = self._code_shape()
        if Z.shape[1:] != shape or Z.ndim < 2:
            wanted = ", ".join(map(str, shape))
            raise InputError(f"Z has shape {Z.shape}; codes have shape (rows, {wanted})")
        validation.refuse_non_finite(Z, "Z", "codes must be finite")
        return self._shaped(use.mean_images(model, Z, self._conditions(condition, len(Z))))

    def reconstruct(self, X: Any, condition: Any = None) -> np.ndarray:
        """Rows through the bottleneck and back: the mean image of the mean code."""
        return self.inverse_transform(self.transform(X, condition), condition)

    def denoise(self, X: Any, num_draws: int = 20, condition: Any = None) -> np.ndarray:
        """Posterior mean images E[E[x | z] | observed], averaged over draws of the code.

        The rows may carry noise that the training rows did not have, as long as they are in range.
        """
        return self._shaped(self._each(use.denoised, X, condition, num_draws=num_draws))

    def impute(
        self, X: Any, missing: Any = None, num_sweeps: int = 100, condition: Any = None
    ) -> np.ndarray:
        """Fill missing entries given the others.

        A Markov chain draws a code given the current image and replaces what is missing by the
        code's mean image; the result is the average over its second half.

        Parameters
        ----------
        X : array, (rows, pixels)
            Values at missing entries are ignored and may be NaN.
        missing : boolean array of the same shape, optional
            By default the NaN entries of X.
        num_sweeps : int
            Length of the chain, at least 2.
        condition : array, (rows, conditions), optional
            Of a conditional model.

        Returns
        -------
        array, (rows, pixels)
            ``X`` with its missing entries filled.
        """
        model = self._networks()
        refuse_blocks(X, "impute()")
        validation.refuse_unreal(X, "X")
        X = np.array(X, use.dtype_of(model), ndmin=2)
        missing = np.isnan(X) if missing is None else np.asarray(missing)
        if missing.dtype != bool or missing.shape != X.shape:
            raise InputError(
                f"missing has dtype {missing.dtype} and shape {missing.shape}; it must be boolean "
                f"of the shape of X, {X.shape}"
            )
        if validation.positive_integer(num_sweeps, "num_sweeps") < 2:
            raise InputError("num_sweeps is 1; impute() needs at least 2")
        X[missing] = 0.5
        model, rows = self._given(X, condition)
        gaps = missing.reshape(rows.x.shape)
        return self._shaped(use.imputed(model, rows, gaps, num_sweeps=num_sweeps))

    def sample(
        self,
        num_draws: int,
        seed: int | None = None,
        *,
        condition: Any = None,
        noise: bool = False,
    ) -> np.ndarray:
        """Images of codes drawn from the prior; with ``noise`` pixels are drawn too.

        Parameters
        ----------
        num_draws : int
            Number of images.
        seed : int, optional
            The same integer gives the same images; by default each call draws others.
        condition : array, (num_draws, conditions) or (conditions,), optional
            Of a conditional model; one for every image, or one for all.
        noise : bool
            Draw pixels from the likelihood instead of their means.

        Returns
        -------
        array
            ``num_draws`` images.
        """
        model, shape = self._networks(), self._code_shape()
        validation.positive_integer(num_draws, "num_draws")
        require_memory(
            8.0 * num_draws * (2 * math.prod(shape) + self._row_size()),
            f"sample({num_draws})",
            "draw fewer at a time",
        )
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        rng = np.random.default_rng(validation.checked_seed(seed))
        codes = rng.standard_normal((num_draws, *shape))
        if condition is not None and np.ndim(condition) == 1 and len(condition) != num_draws:
            condition = np.broadcast_to(condition, (num_draws, len(condition)))
        if not noise:
            return self.inverse_transform(codes, condition)
        codes = codes.astype(use.dtype_of(model))
        given = self._conditions(condition, num_draws)
        return self._shaped(use.drawn_images(replace(model, seed=seed), codes, given))

    def elbo(self, X: Any, num_draws: int = 10, condition: Any = None) -> np.ndarray:
        """The evidence lower bound of every row, in nats; of its observed entries."""
        found: np.ndarray = self._each(use.elbos, X, condition, num_draws=num_draws)
        return found

    def log_likelihood(self, X: Any, num_draws: int = 1000, condition: Any = None) -> np.ndarray:
        """Importance-weighted estimate of log p(x) of every row: above the bound on average."""
        found: np.ndarray = self._each(use.log_likelihoods, X, condition, num_draws=num_draws)
        return found

    def score(self, X: Any, y: Any = None, condition: Any = None) -> float:
        """Mean bound per row: higher is better."""
        return float(np.mean(self.elbo(X, condition=condition)))

    def plot_codes(self, X: Any, labels: Any = None, condition: Any = None) -> Any:
        """Scatter of mean codes, coloured by labels; returns a matplotlib figure.

        Of a code with more than two coordinates, the two whose means vary most over the rows.
        """
        codes = self.transform(X, condition).reshape(len(X), -1)
        if codes.shape[1] == 1:
            codes = np.column_stack([codes, np.zeros(len(codes))])
        chosen = np.sort(np.argsort(-codes.var(axis=0), kind="stable")[:2])
        names = (f"z{chosen[0] + 1}", f"z{chosen[1] + 1}")
        given = None if labels is None else np.asarray(labels)
        return plot_codes(codes[:, chosen], given, names=names)


@dataclass(frozen=True)
class VAEModel(Uses):
    """Networks of one's own with all that :class:`~curvi.VAE` can do: codes, images, bounds.

    Parameters
    ----------
    objective : VAEObjective
        The networks and the likelihood.
    params : pytree of arrays
        Their parameters, such as ``curvi.minimise(...).params``.
    latent : int or tuple of int
        Shape of one code.
    seed : int
        Of the draws in bounds, and of imputed and denoised images.
    trained : Trained, optional
        How they were trained, by :func:`fit_networks`: history, outcome, sentence.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np
    >>> from curvi.vae import VAEModel, VAEObjective
    >>> objective = VAEObjective(
    ...     lambda p, x: (x @ p["e"], jnp.zeros((len(x), 2))), lambda p, z: z @ p["d"])
    >>> model = VAEModel(objective, {"e": np.ones((4, 2)), "d": np.ones((2, 4))}, latent=2)
    >>> model.sample(3).shape, model.encode(np.ones((5, 4)))[1].shape
    ((3, 4), (5, 2))
    """

    objective: VAEObjective
    params: PyTree
    latent: int | tuple[int, ...]
    seed: int = 0
    trained: Any = None

    def reconstruct(self, X: Any, condition: Any = None) -> np.ndarray:
        """Rows through the bottleneck and back, in the shape of the rows."""
        found = super().reconstruct(X, condition)
        return found.reshape(np.shape(X)) if found.size == np.size(X) else found

    def _networks(self) -> VAEModel:
        return self

    def _given(self, X: Any, condition: Any) -> tuple[Any, Rows]:
        X = np.asarray(X, use.dtype_of(self))
        gaps = np.isnan(X)
        validation.refuse_non_finite(np.where(gaps, 0.0, X), "X", "entries must be finite, or NaN")
        model = self
        if gaps.any() and not self.objective.missing:
            model = replace(self, objective=replace(self.objective, missing=True))
        return model, Rows(X, X, self._conditions(condition, len(X)))

    def _conditions(self, condition: Any, rows: int) -> np.ndarray | None:
        if not self.objective.conditional:
            return checked_conditions(condition, rows, 0, use.dtype_of(self))
        return checked_conditions(condition, rows, None, use.dtype_of(self))

    def _code_shape(self) -> tuple[int, ...]:
        return (self.latent,) if isinstance(self.latent, int) else tuple(self.latent)

    def _row_size(self) -> int:
        return sum(np.size(leaf) for leaf in jax.tree.leaves(self.params))


def checked_conditions(
    condition: Any, rows: int, columns: int | None, dtype: Any
) -> np.ndarray | None:
    """Conditions as one matrix; ``columns`` is their number, None where it is not known.

    Raises
    ------
    InputError
        If there are none where there should be, or other ones than the model knows.
    """
    if columns == 0:
        if condition is not None:
            raise InputError("condition was given, but the model was trained without one")
        return None
    if condition is None:
        raise InputError("condition is missing; the model was trained with one: pass condition=")
    validation.refuse_unreal(condition, "condition")
    array = np.asarray(condition)
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"condition has dtype {array.dtype}; give numbers, classes as columns of 0 and 1 "
            "(sklearn.preprocessing.OneHotEncoder)"
        )
    array = array.astype(dtype).reshape(len(array), -1) if array.ndim else array
    if array.shape[:1] != (rows,) or (columns is not None and array.shape[1] != columns):
        known = "columns" if columns is None else columns
        raise InputError(f"condition has shape {array.shape}; it must be ({rows}, {known})")
    validation.refuse_non_finite(array, "condition", "conditions must be finite")
    return array
