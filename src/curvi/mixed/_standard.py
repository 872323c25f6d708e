r"""The coordinates of a fit: columns around their origins, every effect in units of its prior.

A row sees :math:`(x - o)\,s / u` where its table has x: o is the origin of the column, s the scale
of the prior of its effect, u the unit of the response. So a fit depends neither on the units of the
table nor on where a column has its zero, and nothing overflows. Afterwards effects and
hyperparameters are turned back: a log sd moves by log s, an intercept to where columns are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from curvi.likelihoods import Extra
from curvi.mixed._design import Design, Factor
from curvi.mixed._hyper import INTERCEPT, Block, Layout
from curvi.mixed._origins import at_zero

if TYPE_CHECKING:
    from curvi.mixed._inference import Fitted

_RESIDUAL = "residual sd"


def origin_of(columns: Sequence[str], means: np.ndarray, varies: np.ndarray) -> tuple[float, ...]:
    """Means of columns that stand beside an intercept; zero for all others."""
    if INTERCEPT not in columns:
        return (0.0,) * len(columns)
    return tuple(
        float(mean) if name != INTERCEPT and varying else 0.0
        for name, mean, varying in zip(columns, means, varies, strict=True)
    )


def standardised(design: Design, layout: Layout) -> tuple[Design, Layout]:
    """The same model in the coordinates of its fit."""
    unit = design.unit
    factors = tuple(_standard_factor(factor, unit) for factor in design.factors)
    extras = tuple(
        Extra(e.name, e.scale / unit, e.prior) if e.name == _RESIDUAL else e for e in layout.extras
    )
    centre = None if design.centre is None else design.centre / design.scales
    plain = replace(
        design, X=(design.X - design.origin) * (design.scales / unit), y=design.y / unit,
        offset=design.offset / unit, scales=np.ones(len(design.names)), centre=centre,
        origin=np.zeros(len(design.names)), unit=1.0, factors=factors,
    )  # fmt: skip
    return plain, Layout(tuple(factor.blocks for factor in factors), extras)


def _standard_factor(factor: Factor, unit: float) -> Factor:
    columns = (factor.columns - factor.origin) * (factor.scales / unit)
    blocks = tuple(Block(b.columns, (1.0,) * b.size, b.correlated) for b in factor.blocks)
    return replace(factor, columns=columns, blocks=blocks)


def moves(design: Design) -> list[np.ndarray]:
    """Matrices that standardise the columns of X, and of a level of each factor, from the right."""
    fixed = np.diag(design.scales / design.unit)
    if design.origin.any():
        fixed[design.names.index(INTERCEPT)] -= design.origin * design.scales / design.unit
    return [fixed, *(_move(factor) / design.unit for factor in design.factors)]


def _move(factor: Factor) -> np.ndarray:
    """``z M`` is ``(z - origin) * scales``, where a block has an intercept or no origin."""
    out, at = np.diag(factor.scales), 0
    for block in factor.blocks:
        part = slice(at, at + block.size)
        out[part, part] = replace(block, within=()).to_zero() @ out[part, part]
        at += block.size
    return out


def in_units_of_table(fitted: Fitted, design: Design, layout: Layout, rows: float) -> Fitted:
    """A posterior in the units of the design that was standardised; intercepts at zero."""
    theta = fitted.theta + _log_units(layout, design.unit)
    first, *others = [
        turn * factor.scales for turn, factor in zip(layout.to_zero(), design.factors, strict=True)
    ]
    rest, at = np.array(fitted.rest), len(design.names)
    rest[:, :at] *= design.scales
    if design.origin.any():
        rest[:, design.names.index(INTERCEPT)] -= rest[:, :at] @ design.origin
    rest[:, :at] = at_zero(rest[:, :at], design.within)
    for factor, turn in zip(design.factors[1:], others, strict=True):
        part = slice(at, at + factor.levels * factor.size)
        shaped = rest[:, part].reshape(len(rest), factor.levels, factor.size)
        rest[:, part] = (shaped @ turn.T).reshape(len(rest), -1)
        at = part.stop
    return replace(
        fitted, theta=theta, rest=rest, level_mean=fitted.level_mean @ first.T,
        level_covariance=first @ fitted.level_covariance @ first.T,
        log_evidence=fitted.log_evidence - rows * float(np.log(design.unit)),
    )  # fmt: skip


def _log_units(layout: Layout, unit: float) -> np.ndarray:
    """What the entries of theta move by."""
    parts = [
        np.concatenate([np.log(block.scales), np.zeros(block.correlations)])
        for blocks in layout.factors
        for block in blocks
    ]
    extras = [np.log(unit) if extra.name == _RESIDUAL else 0.0 for extra in layout.extras]
    return np.concatenate([*parts, extras])
