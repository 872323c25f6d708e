"""What :class:`~curvi.solvers.KFAC` needs to see of an objective: its layers."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Float, PRNGKeyArray


class Layer(NamedTuple):
    """How one layer ``rows W`` is to be preconditioned; rows carry a last column of ones.

    Attributes
    ----------
    white_input : the rows are uncorrelated and scaled already: nothing to do on their side
    diagonal_output : the curvature in the layer's outputs is known to be diagonal
    decay : weight of the L2 penalty on the layer's matrix, of which the last row is free
    """

    white_input: bool = False
    diagonal_output: bool = False
    decay: float = 0.0


class Pass(NamedTuple):
    """One forward pass: what the loss depends on, and the rows that entered each layer."""

    outputs: Any
    inputs: tuple[Array, ...]


@runtime_checkable
class Layered(Protocol):
    """An objective ``loss(outputs, batch) + penalty`` over a network of affine layers.

    Layer l multiplies its input rows, ones appended, with matrix l and adds ``taps[l]`` (zeros):
    derivatives in the taps are the back-propagated deltas.
    """

    def layers(self, params: Any) -> tuple[Layer, ...]:
        """How each layer is to be preconditioned."""

    def matrices(self, params: Any) -> tuple[Float[Array, "_ _"], ...]:
        """The matrices, the last row of each being the bias."""

    def assemble(self, params: Any, matrices: tuple[Array, ...]) -> Any:
        """Parameters like the given ones, with these matrices."""

    def tap_shapes(self, params: Any, batch: Any) -> tuple[tuple[int, int], ...]:
        """Shapes of the taps for a batch."""

    def tapped(self, params: Any, taps: Any, batch: Any, key: PRNGKeyArray) -> Pass:
        """Forward pass."""

    def loss(self, outputs: Any, batch: Any) -> Array:
        """Mean loss per row."""

    def curvature(self, outputs: Any) -> Any:
        """Diagonal of the loss's curvature in the outputs, for single rows."""

    def penalty(self, params: Any) -> Array:
        """What the objective adds to the loss, the L2 terms of all layers."""
