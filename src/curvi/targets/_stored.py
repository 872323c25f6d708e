"""What is left of a target in a file: where it started and its shape, not its functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Array, Float, PyTree

from curvi._core.errors import InputError
from curvi._core.programs import Program
from curvi._core.trees import Unravel, precision_of
from curvi.targets._density import Density
from curvi.targets._targets import AbstractTarget, Labels, Target


class NoLogDensityError(InputError):
    """Something needs the log density of a result that was loaded without it."""


class MissingProgram:
    """Stands for a program that was not stored; any use of it says so."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle look for methods of their own
            raise AttributeError(name)
        raise _missing()

    def __call__(self, *arguments: Any) -> Any:
        """Not possible."""
        raise _missing()


def _missing() -> NoLogDensityError:
    return NoLogDensityError(
        "this result was loaded without the functions of its target, which no file can hold; give "
        "them again with curvi.load(path, target=...)"
    )


@dataclass(frozen=True, eq=False)
class StoredTarget(AbstractTarget):
    """The target of a result that was loaded without its functions.

    Parameters
    ----------
    position : pytree
        Where the variational mean started.
    constrained : bool
        Whether the target had a function ``constrain``.
    stored_rows : int
        Rows of its data.
    labels : Labels, optional
        Names of axes and observed data.
    """

    position: PyTree
    constrained: bool = False
    stored_rows: int = 0
    labels: Labels | None = field(default=None, repr=False)
    start: Float[Array, " dimension"] = field(init=False, repr=False)
    density: Density = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Lay the position out as a vector."""
        self._set_density()

    @property
    def constrain(self) -> Callable[[PyTree], PyTree] | None:  # type: ignore[override]
        """A function that says that it is missing, or None where there was none."""
        return MissingProgram() if self.constrained else None

    @property
    def to_user(self) -> Program:
        """From a flat position to the user's own space, where that is the same space."""
        if self.constrained:
            raise _missing()
        with precision_of(self.dtype):
            return Target(lambda _: 0.0 * self.start[0], self.position).to_user

    def _traced(self, unravel: Unravel, batches: Iterable[int]) -> Density:
        prior: Any = MissingProgram()
        return Density(prior, unravel, self.dtype, self.stored_rows, None)

    def check_start(self) -> None:
        """Not possible without the functions."""
        raise _missing()
