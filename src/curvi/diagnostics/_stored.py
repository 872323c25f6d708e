"""What a file keeps of a result, and how the rest is given again."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NotRequired, TypedDict, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from curvi._core.errors import InputError
from curvi._core.text import printable
from curvi._core.trees import leaf_names, precision_of, size
from curvi.diagnostics._evaluation import ImportanceWeights, evaluation_noise
from curvi.diagnostics._moments import UserMoments
from curvi.io import CannotStoreError, Encoder, Saved, require_claims, require_like
from curvi.targets import AbstractTarget, Labels, NoLogDensityError, StoredTarget, Target

DRAWS = "stored_draws"
_IN_NEW_SPACE = ("_moments", DRAWS)  # computed again in the structure of a target given


@dataclass(frozen=True)
class StoredDraws:
    """What a file keeps of the draws that moments are computed from."""

    most_draws: int = 4000
    most_numbers: float = 2e7  # in all stored draws together
    compared: int = 2  # draws at which the log density given is compared


STORED = StoredDraws()

# Of a result without its functions; lengths of the same name agree.
_CLAIMS = {
    "key_data": "bits 2", "trace": "trace steps step elbo", "params.mean": "number d",
    "target.start": "number d", "noise": "number? draws noise", "log_ratio": "number? points",
    "start_elbos": "number? starts", "correction.draws": "real? corrected d",
    "correction.weights": "weights? corrected", "replicates.rows": "number? replicates shown",
}  # fmt: skip

Result = TypeVar("Result", bound="StoredResult")


_Given = TypedDict("_Given", {  # noqa: UP013  what is left of a target
    "position": PyTree, "dtype": str, "constrained": bool, "num_rows": int, "labels": Labels | None,
})  # fmt: skip
_Derived = TypedDict("_Derived", {  # noqa: UP013  what is computed when it is first read, and kept
    "_moments": UserMoments, "alarms": NotRequired[tuple[str, ...]],
    "warnings": NotRequired[tuple[str, ...]], "mc_error": NotRequired[float | None],
    "_errors": NotRequired[np.ndarray | None], "_weights": NotRequired[ImportanceWeights],
    "_tails": NotRequired[str], "responses": NotRequired[np.ndarray],
    "stored_draws": NotRequired[PyTree],
})  # fmt: skip
_DERIVED = tuple(_Derived.__annotations__)


class StoredResult(Saved):
    """The part of a result that files and pickles keep, derived diagnostics included."""

    _stored: ClassVar[dict[str, Any]] = {"target": _Given, "derived": _Derived}

    def _state(self: Any) -> dict[str, Any]:
        """Fields, what is left of the target, and what was derived."""
        state = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        target = state.pop("target")
        state["modes"] = tuple(
            mode._replace(position=_plain(mode.position), sd=_plain(mode.sd)) for mode in self.modes
        )
        if not isinstance(target, StoredTarget):
            self._derive()
            if not self._early:
                state["replicates"] = vars(self).get("_replicates", self.replicates)
        state["target"] = {
            "position": _plain(target.position), "dtype": str(target.dtype),
            "constrained": target.constrain is not None, "num_rows": target.num_rows,
            "labels": target.labels,
        }  # fmt: skip
        derived = {name: vars(self)[name] for name in _DERIVED if name in vars(self)}
        moments = self._moments
        derived["_moments"] = moments._replace(mean=_plain(moments.mean), sd=_plain(moments.sd))
        if DRAWS in derived:
            derived[DRAWS] = _plain(derived[DRAWS])
        state["derived"] = derived
        return state

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Any:
        """The result without the functions of its target."""
        given, derived = state.pop("target"), state.pop("derived")
        # Users print these as they are: what a file says must not command their terminal.
        state["message"] = printable(state["message"], keep="\n")
        for name in ("alarms", "warnings"):
            if name in derived:
                derived[name] = tuple(printable(text, keep="\n") for text in derived[name])
        with precision_of(given["dtype"]):
            target = StoredTarget(
                given["position"], given["constrained"], given["num_rows"], given["labels"]
            )
        result: Any = cls(target=target, **state)  # type: ignore[call-arg]
        for name, value in derived.items():
            object.__setattr__(result, name, value)
        return result

    def _check_stored(self: Any) -> None:
        """Refuse numbers that no fit could have left."""
        require_claims(self, _CLAIMS)
        dtype, dimension = self.target.dtype, self.target.dimension
        wide = self.family.num_noise(dimension)
        if self.noise is not None and self.noise.shape[1] != wide:
            raise InputError(f"its noise has {self.noise.shape[1]} columns, not {wide}")
        start = jax.ShapeDtypeStruct((dimension,), dtype)
        with precision_of(dtype):
            like = jax.eval_shape(self.family.init, start, start)
        require_like(tuple(self.params), tuple(like), "params", exact=True)
        require_like(self._moments.sd, self._moments.mean, "derived._moments.sd")
        if not self.target.constrained:
            require_like(self._moments.mean, self.target.position, "derived._moments.mean")
        sds = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(self._moments.sd)])
        if (sds < 0).any():
            raise InputError("its derived._moments.sd has a number that is negative")
        self._require_derived()
        trusted = not self.outcome.is_failure and not self._moments.doubt
        leaves = jax.tree.leaves((tuple(self.params), self._moments.mean, self._moments.sd))
        if trusted and not all(np.isfinite(leaf).all() for leaf in leaves):
            raise InputError("its params or derived._moments have a number that is not finite")

    def _require_derived(self: Any) -> None:
        """Refuse a file without what takes the log density to compute, or with other sizes."""
        finite = bool(np.isfinite(self.elbo))
        needed = [] if self.outcome.is_failure else ["alarms", "_weights"]
        needed += ["warnings"] if finite else []
        if finite and not self._early:
            needed += ["mc_error", "_errors"]
            solved = self.correction is not None or getattr(self.method, "host_only", False)
            fixed = self.noise is not None and self.batch_size is None
            if self.replicates is None and fixed and not solved:
                raise InputError("its replicates are missing")
        for name in needed:
            if name not in vars(self):
                raise InputError(f"its derived.{name} is missing")
        mean, drawn = self._moments.mean, vars(self).get(DRAWS)
        if (
            finite
            and self.target.constrained
            and size(mean) <= STORED.most_numbers
            and drawn is None
        ):
            raise InputError(f"its derived.{DRAWS} is missing")
        each = ("derived._errors", "derived._moments.errors", "derived.responses")
        sizes = dict.fromkeys(each, "number? numbers")
        around = {"numbers": size(mean), "derived": vars(self), "num_rows": self.target.stored_rows}
        require_claims(around, {"numbers": "whole numbers", "num_rows": "whole rows", **sizes})
        if drawn is not None:
            count = len(jax.tree.leaves(drawn)[0])
            like = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (count, *np.shape(leaf))), mean)
            require_like(drawn, like, f"derived.{DRAWS}")

    def __getstate__(self: Any) -> dict[str, Any]:
        """Also what was derived, where it cannot be computed again."""
        state: Any = super().__getstate__()
        if isinstance(self.target, StoredTarget):
            state |= {name: vars(self)[name] for name in _DERIVED if name in vars(self)}
        return dict(state)

    def _derive(self: Any) -> None:
        """Compute what a result without its log density could not compute any more."""
        if not self.outcome.is_failure:
            _ = self.alarms, self._weights
        if np.isfinite(self.elbo):
            _ = self.warnings, None if self._early else (self.mc_error, self._errors)
        wide = size(self._moments.mean)
        count = int(min(STORED.most_draws, STORED.most_numbers // max(wide, 1)))
        if self.target.constrain is not None and count > 0 and np.isfinite(self.elbo):
            object.__setattr__(self, DRAWS, self.sample(count))

    def _with_target(self: Any, target: Any) -> Any:
        """The same result with the functions of its target, which must be those of the fit."""
        with precision_of(self.target.dtype):
            if not isinstance(target, AbstractTarget):
                target = Target(target, self.target.position)
            self._require_same(target)
            found = replace(self, target=target)
        for name in _DERIVED:
            if name in vars(self) and name not in _IN_NEW_SPACE:
                object.__setattr__(found, name, vars(self)[name])
        return found

    def _require_same(self: Any, target: AbstractTarget) -> None:
        """Shapes first, then the log density itself at draws whose ratios are stored."""
        mine = self.target
        for what, stored, given in (
            ("dimension", mine.dimension, target.dimension),
            ("dtype", mine.dtype, target.dtype),
            ("number of rows", mine.num_rows, target.num_rows),
        ):
            if stored != given:
                raise InputError(f"the target given has {what} {given}, the fit had {stored}")
        if self.log_ratio is None:
            return
        noise = evaluation_noise(target, self.family, self._key)[: STORED.compared]
        for epsilon, ratio in zip(noise, self.log_ratio, strict=False):
            z = self.family.transform(self.params, jnp.asarray(epsilon))
            now = float(target.log_prob(z) - self.family.log_prob(self.params, z))
            scale = abs(float(self.family.log_prob(self.params, z))) + abs(ratio) + 1.0
            error = 1e4 * float(jnp.finfo(target.dtype).eps) * scale
            if not abs(now - ratio) <= error and np.isfinite(ratio):
                raise InputError(
                    f"the target given is not the one that was fitted: log p - log q is {now:.6g} "
                    f"at a draw of q where it was {ratio:.6g}"
                )


def _plain(tree: PyTree) -> PyTree:
    """A tree that a file can hold: itself, or its leaves by the names of their places."""
    try:
        Encoder().value(tree)
    except CannotStoreError:
        return dict(zip(leaf_names(tree), jax.tree.leaves(tree), strict=True))
    return tree


def stored_draws(result: Any, num_draws: int, seed: int) -> PyTree:
    """Some of the draws that were stored, where new ones would need a missing function.

    Raises
    ------
    InputError
        If more are asked for than were stored, or none were.
    """
    found = vars(result).get(DRAWS)
    count = 0 if found is None else len(jax.tree.leaves(found)[0])
    if num_draws > count:
        raise NoLogDensityError(
            f"{num_draws} draws are asked for and the file holds {count}: new ones need the "
            "function constrain of the target; give it with curvi.load(path, target=...)"
        )
    chosen = np.random.default_rng(seed).permutation(count)[:num_draws]
    return jax.tree.map(lambda leaf: leaf[chosen], found)
