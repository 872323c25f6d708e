"""SparsePrecision: a Gaussian along the conditional independence of the target."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from curvi._core.errors import InputError
from curvi.families._conditional import Warped, WarpedGaussian, coordinates_of, leaf_coordinates
from curvi.families._inverse_root import InverseRoot
from curvi.linalg import Elimination, eliminate

_UNKNOWN = (
    "SparsePrecision does not know the structure of this position; pass it to curvi.fit, which "
    "finds it, or give pairs and call family.on(position) first"
)


@dataclass(frozen=True)
class SparsePrecision(WarpedGaussian):
    r"""A Gaussian whose precision is zero where the coordinates are conditionally independent.

    The precision of a Gaussian approximation has the zeros of the Hessian of :math:`\log p`: two
    coordinates that meet in no term are independent given the rest. Groups, chains and trees have
    few other entries; coordinates that touch nearly all others, such as hyperparameters, are
    dense rows, the *dense block*. Draws, log densities and sds are by elimination in rounds of
    coordinates that do not touch each other, in time and memory linear in the entries.

    On a linear-Gaussian model with sparse structure the best one *is* the posterior. As in
    :class:`~curvi.Conditional`, scales of locals may follow the dense block, log-linearly
    (``follows``).

    :func:`curvi.fit` finds the structure from Hessian-vector products, checks it on others, and
    fits by :class:`~curvi.NaturalGradient`.

    Parameters
    ----------
    globals_ : tuple
        Names of leaves, or indices of the flat position, that touch many others. Only together
        with ``pairs``.
    pairs : sequence of (int, int), optional
        Indices of the flat position that touch each other, beside the globals. Found by default.
    follows : bool
        Whether the scales of the locals follow the dense block.
    elimination : Elimination
        Left out; found, or from ``pairs``.

    Raises
    ------
    InputError
        Where a name is unknown, a pair is out of range, or the structure is not sparse.

    Examples
    --------
    >>> import curvi, jax.numpy as jnp
    >>> family = curvi.SparsePrecision(pairs=((0, 1), (1, 2))).on(jnp.zeros(3))
    >>> family.sd(family.init(jnp.zeros(3), 1.0)).tolist()
    [1.0, 1.0, 1.0]
    """

    globals_: tuple[str | int, ...] = ()
    pairs: tuple[tuple[int, int], ...] | None = None
    follows: bool = False
    elimination: Elimination | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Make pairs hashable."""
        if self.pairs is None:
            if self.globals_ and self.elimination is None:
                raise InputError("globals_ without pairs; give both, or neither to have them found")
            return
        try:
            pairs = np.asarray(self.pairs, int).reshape(len(self.pairs), 2)
        except (TypeError, ValueError):
            raise InputError("pairs is not a sequence of pairs of indices") from None
        object.__setattr__(self, "pairs", tuple((int(a), int(b)) for a, b in pairs))

    def on(self, position: Any) -> SparsePrecision:
        """The family with the structure of its pairs; the same where it is to be found."""
        if self.elimination is not None or self.pairs is None:
            return self
        leaves = leaf_coordinates(position)
        dimension = sum(index.size for index in leaves.values())
        dense = coordinates_of(self.globals_, leaves, dimension)
        pairs = np.asarray(self.pairs, int).reshape(-1, 2)
        if pairs.size and not (pairs.min() >= 0 and pairs.max() < dimension):
            raise InputError(
                f"pairs has {pairs.min()} to {pairs.max()}; there are {dimension} coordinates"
            )
        ones = np.ones(2 * len(pairs))
        both = np.concatenate([pairs, pairs[:, ::-1]])
        pattern = sparse.csr_matrix((ones, (both[:, 0], both[:, 1])), (dimension, dimension))
        structure = eliminate(pattern, np.unique(dense))
        if structure is None:
            raise InputError("the precision of these pairs is not sparse; use FullRank()")
        return self.with_structure(structure)

    def with_structure(self, elimination: Elimination) -> SparsePrecision:
        """The family with a structure that was found."""
        return replace(self, globals_=(), pairs=None, elimination=elimination)

    @property
    def scale(self) -> Warped:
        """R by elimination, and the scales that follow the dense block."""
        structure = self.elimination
        if structure is None:
            raise InputError(_UNKNOWN)
        count = structure.num_dense if self.follows else 0
        return Warped(structure.order, count, InverseRoot(structure))

    _stored: ClassVar[dict[str, Any]] = {"structure": dict[str, np.ndarray] | None}

    def _state(self) -> dict[str, Any]:
        """The arguments of the constructor, the structure by its arrays."""
        structure = self.elimination
        state = {name: getattr(self, name) for name in ("globals_", "pairs", "follows")}
        return state | {"structure": None if structure is None else structure.arrays()}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> SparsePrecision:
        """The family with these arguments."""
        arrays = state.pop("structure")
        structure = None if arrays is None else Elimination.of_arrays(arrays)
        return cls(**state, elimination=structure)

    def __repr__(self) -> str:
        structure = self.elimination
        if structure is None:
            return "SparsePrecision()" if self.pairs is None else "SparsePrecision(pairs)"
        entries = len(structure.rows) + structure.num_locals * structure.num_dense
        return f"SparsePrecision({structure.num_dense} dense rows, {entries} entries beside them)"
