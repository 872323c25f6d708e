"""What the estimators share: validation before training, attributes after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import optax
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from curvi._core import validation
from curvi._core.errors import (
    InputError,
    Interrupted,
    NotConvergedWarning,
    NumericalError,
    Outcome,
    warn_user,
)
from curvi._core.memory import require_memory
from curvi.io import SavedEstimator, require_described, require_like
from curvi.likelihoods import PIXELS, GaussianPixels, Pixels, pixels_for
from curvi.solvers import KFAC, LBFGS, Averaged, FirstOrder, HessianFree, Method
from curvi.vae._mapped import on_disk, refuse_blocks
from curvi.vae._networks import ACTIVATIONS
from curvi.vae._report import Reported
from curvi.vae._stopping import EVALUATIONS
from curvi.vae._training import Schedule, Trained, default_epochs
from curvi.vae._use import dtype_of

METHODS: dict[str, Callable[[], Method]] = {
    "kfac": KFAC,
    "hessian_free": HessianFree,
    "lbfgs": lambda: LBFGS(history=10),
    "adam": lambda: Averaged(FirstOrder(optax.adam(1e-3), check_updates=False)),
    "adagrad": lambda: FirstOrder(optax.adagrad(0.03), check_updates=False),
}


@cache
def method_named(name: str) -> Method:
    """A method by name, always the same object.

    A transformation of optax equals nothing but itself: a new one would be compiled by every fit.
    """
    return METHODS[name]()


def as_method(method: Any) -> Method:
    """A method by name, one of curvi's own, or a transformation of optax.

    Raises
    ------
    InputError
        If it is none of them.
    """
    if isinstance(method, optax.GradientTransformation | optax.GradientTransformationExtraArgs):
        return FirstOrder(method)
    if isinstance(method, Method):
        return method
    return method_named(validation.one_of(method, tuple(METHODS), "method"))


def rows_per_step(given: int | None, method: Method, rows: int) -> int:
    """What is asked for, at most all rows, or what the method is used to.

    A table of half as many rows has some read twice, and of a smaller one nearly all are read, as a
    power of two: tables of another length, and the folds of one, share compiled code.
    """
    if given is not None:
        return min(given, rows)
    usual = method.usual_batch_size
    return usual if 2 * rows >= usual else 2 ** (rows.bit_length() - 1)


class AutoEncoder(Reported, SavedEstimator, BaseEstimator):
    """What both estimators share: validation before training, attributes after it."""

    latent: int
    hidden: Sequence[int]
    activation: str
    likelihood: str
    variance: str | float
    decoder_l2: float
    batch_size: int | None
    max_epochs: int | None
    time_budget: float | None
    random_state: Any
    verbose: bool | int
    result_: Trained
    history_: dict[str, np.ndarray]
    image_shape_: tuple[int, ...] | None

    _claims = {  # noqa: RUF012  of no instance
        "n_features_in_": "whole d", "image_shape_": "anything", "n_iter_": "whole iterations",
        "elbo_": "number", "outcome_": "outcome", "message_": "text", "result_.trace":
        "trace steps step", "history_": "trace evaluations step epoch elbo validation_elbo",
        "feature_names_in_": "texts? d",
    }  # fmt: skip

    def __sklearn_is_fitted__(self) -> bool:
        """Whether a fit has ended; one that was refused may have set other attributes."""
        return hasattr(self, "result_")

    def _check_options(self) -> None:
        """Validate networks and schedule."""
        validation.positive_integer(self.latent, "latent")
        if self.max_epochs is not None:
            validation.positive_integer(self.max_epochs, "max_epochs")
        hidden: Any = self.hidden
        if isinstance(hidden, str) or not isinstance(hidden, Sequence) or not hidden:
            raise InputError(f"hidden is {hidden!r}; give a sequence of sizes, as in (500,)")
        for size in hidden:
            validation.positive_integer(size, "a size in hidden")
        validation.one_of(self.activation, tuple(ACTIVATIONS), "activation")
        validation.one_of(self.likelihood, tuple(PIXELS), "likelihood")
        GaussianPixels(self.variance)  # which validates it, also where the likelihood has none
        if self.time_budget is not None:
            validation.positive_number(self.time_budget, "time_budget")
        if self.batch_size is not None:
            validation.positive_integer(self.batch_size, "batch_size")
        weight: Any = self.decoder_l2
        if isinstance(weight, bool) or not np.isscalar(weight) or weight != 0:
            validation.positive_number(self.decoder_l2, "decoder_l2")
        validation.verbosity(self.verbose)
        validation.random_source(self.random_state)

    def _rows(self, X: Any, *, reset: bool = False, gaps: bool = False) -> np.ndarray:
        """Validate rows: finite, of the right width, in range for the likelihood.

        Images of any shape become flat rows. They are computed with in float32, or in float64 where
        JAX has it switched on and the rows are float64. With ``gaps`` NaN is a missing entry.
        """
        if not reset:
            check_is_fitted(self)
        refuse_blocks(X, type(self).__name__)
        validation.refuse_unreal(X, "X")
        if isinstance(X, list | tuple) and len(X) and np.ndim(X[0]) > 1:
            X = np.asarray(X)  # images as nested lists
        shape = np.shape(X)[1:] if hasattr(X, "shape") and len(np.shape(X)) > 2 else None
        if shape is not None:
            X = np.asarray(X).reshape(len(X), -1)
        elif not reset and self.image_shape_ is not None and np.shape(X) == self.image_shape_:
            raise InputError(
                f"X has shape {np.shape(X)}, that of one image; give images with a leading axis of "
                "rows, as in X[None]"
            )
        if str(getattr(X, "dtype", "")) == "bfloat16":  # which scikit-learn takes for an object
            X = np.asarray(X, np.float32)
        X = validate_data(
            self, X, dtype=(np.float64, np.float32), ensure_all_finite=False, reset=reset
        )
        if reset:
            self.image_shape_ = shape
        values = np.where(np.isnan(X), 0.0, X) if gaps else X
        need = "entries must be finite, or NaN where they are missing"
        if not gaps:
            need = "entries must be finite, not NaN or infinity"
        validation.refuse_non_finite(values, "X", need)
        kind = PIXELS[self.likelihood]()
        if (outside := kind.outside(X)).any():
            row, column = (int(i) for i in np.argwhere(outside)[0])
            raise InputError(
                f"X[{row}, {column}] is {X[row, column]}; likelihood={kind.name!r} needs "
                f"{kind.need}"
            )
        dtype = jax.dtypes.canonicalize_dtype(X.dtype) if reset else dtype_of(self.result_)
        with np.errstate(over="ignore"):  # what overflows is refused with its size
            return X.astype(dtype, copy=False)

    def _network_sizes(self) -> dict[str, list[int]]:
        """Sizes of layers, by the name of the network."""
        hidden, wide, also = list(self.hidden), self.n_features_in_, vars(self).get("classes_")
        more = getattr(self, "n_conditions_", 0) if also is None else len(also)
        sizes = {
            "encoder": [wide + more, *hidden, 2 * self.latent],
            "decoder": [self.latent + more, *hidden[::-1], wide],
        }
        return sizes if also is None else {"classifier": [wide, *hidden, len(also)], **sizes}

    def _check_stored(self) -> None:
        """Refuse networks of a file that do not fit its sizes."""
        if not hasattr(self, "result_"):
            return
        AutoEncoder._check_options(self)
        self.params_, self.objective_ = self.result_.params, self.result_.objective  # one meaning
        require_described(type(self), vars(self))
        params, chosen = self.params_, f"hidden={self.hidden}, latent={self.latent}"
        for name, sizes in self._network_sizes().items():
            layers = tuple(getattr(params, name))
            if name == "encoder" and hasattr(params, "heads"):
                layers = (*layers, params.heads)
            like = tuple(jax.ShapeDtypeStruct((a + 1, b), np.float32) for a, b in pairwise(sizes))
            require_like(layers, like, f"result_.params.{name} ({chosen})")
        if not all((np.abs(leaf) < 1e9).all() for leaf in jax.tree.leaves(params)):  # noqa: PLR2004
            raise InputError("its result_.params have a number that is not finite, or none of use")
        given = self.activation, bool(getattr(self, "n_conditions_", 0)), False
        for name, need in zip(("activation", "conditional", "white"), given, strict=True):
            if getattr(self.objective_, name, need) != need:
                raise InputError(f"its result_.objective.{name} is not that of the model")

    def _shaped(self, images: np.ndarray) -> np.ndarray:
        """Rows in the shape in which they were given."""
        return images if self.image_shape_ is None else images.reshape(-1, *self.image_shape_)

    def _earlier_params(self, X: Any) -> Any:
        """Weights of the last fit, to go on from."""
        check_is_fitted(self)
        source = on_disk(X)
        self._rows(X if source is None else source[:2], gaps=True)  # width and range as before
        return jax.tree.map(np.asarray, self.params_)

    def _likelihood(self, X: np.ndarray) -> Pixels:
        return pixels_for(X, self.likelihood, self.variance)

    def _seed(self) -> int:
        return int(validation.random_source(self.random_state).randint(2**31 - 1))

    def _require_memory(
        self, X: np.ndarray, networks: Sequence[Sequence[int]], draws: int, *, copies: int = 5,
        factors: int = 4,
    ) -> None:  # fmt: skip
        """Refuse networks (sizes of their layers) or batches that would not fit into memory.

        ``copies``: of the weights: gradient, momentum, average, and the first draws in float64.
        ``factors``: matrices of curvature between layers, with their roots.
        """
        weights = sum((a + 1.0) * b for sizes in networks for a, b in pairwise(sizes))
        inner = sum(float(b) ** 2 for sizes in networks for b in sizes[1:-1])
        # What the decoder is given has a factor, too.
        inner += float(self.latent) ** 2 * (self.method == "kfac" or isinstance(self.method, KFAC))
        size = X.itemsize * (copies * weights + factors * inner)
        what = f"training networks of hidden={tuple(self.hidden)} and latent={self.latent}"
        require_memory(size, what, "choose smaller layers")
        rows = min(len(X), max(self.batch_size or 0, EVALUATIONS.most_rows))
        size = 2.0 * X.itemsize * draws * rows * sum(sum(sizes) for sizes in networks)
        what = f"an evaluation of {rows} rows, {draws} times each,"
        require_memory(size, what, "lower batch_size, num_draws or the number of classes")

    def _schedule(
        self, rows: int, batch_size: int, seed: int, patience: int = 10, on_step: Any = None
    ) -> Schedule:
        epochs = self.max_epochs or default_epochs(rows, batch_size)
        budget, progress = self.time_budget, bool(self.verbose)
        return Schedule(batch_size, epochs, budget, patience, seed, progress, on_step=on_step)

    def _publish(self, trained: Trained) -> None:
        """Attributes of a run; a failed one warns, or raises if it left nothing to use.

        One that the time budget has cut short warns; the last epoch is the ordinary end. An
        interrupted one raises, so that cross-validation stops.
        """
        self.result_, self.params_, self.objective_ = trained, trained.params, trained.objective
        self.history_, self.n_iter_, self.elbo_ = trained.history, trained.steps, trained.elbo
        self.outcome_, self.message_ = trained.outcome, trained.sentence
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trained.params)):
            raise NumericalError(
                "the weights are not finite after training; use the default method, shorter steps "
                "or smaller first weights",
                trained,
            )
        if trained.outcome is Outcome.INTERRUPTED:
            raise Interrupted(self.message_, trained)
        if trained.outcome is Outcome.DIVERGED:
            self.message_ = (
                f"Training diverged: the ELBO per row is {trained.elbo:.4g}, far below that of the "
                "first weights or of a model that ignores the rows. Use the default method, "
                "shorter steps, or rows of unit size."
            )
        elif (
            trained.outcome.is_failure and not np.isfinite(trained.history["validation_elbo"]).any()
        ):
            raise NumericalError(self.message_, trained)
        if trained.outcome.is_failure or trained.out_of_time:
            warn_user(NotConvergedWarning(self.message_, trained))


def kept(training: Callable[[], Trained]) -> Trained:
    """What a training leaves, or its pilot epoch where Ctrl-C came before the rest began."""
    try:
        return training()
    except Interrupted as cut:
        found: Trained = cut.result
        return found


def check_rows(X: np.ndarray, latent: int) -> None:
    """Refuse tables from which nothing can be learned."""
    if len(X) < 2:
        raise InputError("X has 1 row (n_samples=1); an auto-encoder needs at least 2 of them")
    observed = ~np.isnan(X)
    for axis, name in ((0, "column"), (1, "row")):
        if (empty := ~observed.any(axis=axis)).any():
            raise InputError(
                f"{name} {int(np.argmax(empty))} of X has no observed entry; leave it out"
            )
    if np.all((X[0] == X) | ~observed | ~observed[0]):
        raise InputError("all rows of X are equal; there is nothing to encode")
    if latent > X.shape[1]:
        message = f"latent is {latent} but X has {X.shape[1]} columns; codes that are not "
        warn_user(message + "needed will stay at the prior", UserWarning)
