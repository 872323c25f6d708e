"""What a page is made of: prose, facts, tables, estimates with intervals, pictures."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

_MINUS = "\N{MINUS SIGN}"
_LARGE, _SMALL = 1e6, 1e-4  # beyond these numbers are written with an exponent


def rounded(value: float, error: float) -> str:
    """A value with as many digits as its error leaves: two digits of the error."""
    if not math.isfinite(value):
        return "not finite"
    if not (math.isfinite(error) and error > 0):
        return plain(value)
    places = 1 - math.floor(math.log10(error))
    if abs(value) >= _LARGE or places > 7:
        digits = max(1, places + 1 + math.floor(math.log10(max(abs(value), error))))
        return _signed(f"{value:.{digits - 1}e}")
    return _signed(f"{round(value, places):,.{max(places, 0)}f}")


def plain(value: float, digits: int = 4) -> str:
    """A value with a number of significant digits and no exponent where that can be read."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    if not _SMALL <= abs(value) < _LARGE:
        return _signed(f"{value:.{digits - 1}e}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{places}f}"
    return _signed(text.rstrip("0").rstrip(".") if "." in text else text)


def percent(share: float, *, sure: float = 0.999) -> str:
    """A probability as per cent, with more digits only near one."""
    if share > sure:
        return ">99.9 %"
    return f"{100 * share:.1f} %" if share > 0.99 else f"{100 * share:.0f} %"  # noqa: PLR2004


def _signed(text: str) -> str:
    if not text.strip("-0.,e+"):
        return text.lstrip("-")
    return text.replace("-", _MINUS, 1) if text.startswith("-") else text


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most ``most + 1`` round numbers between two ends."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next((m * unit for m in (1, 2, 2.5, 5) if m * unit >= raw), 10 * unit)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first
    return [0.0 if k == 0 else k * step for k in range(first, first + count + 1)]


def tick_labels(places: list[float]) -> list[str]:
    """The ticks with the digits that tell them apart."""
    if len(places) < 2:
        return [plain(place, 3) for place in places]
    step, largest = places[1] - places[0], max(map(abs, places))
    if largest >= _LARGE or largest < _SMALL:
        return [_signed(f"{place:.1e}") for place in places]
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    if abs(step * 10**digits - round(step * 10**digits)) > 1e-6:  # noqa: PLR2004  steps of 2.5
        digits += 1
    return [_signed(f"{place:,.{digits}f}") for place in places]


LEVEL = 0.9  # of every interval on a page


@dataclass(frozen=True)
class Prose:
    """A paragraph."""

    text: str
    kind: ClassVar[str] = "prose"

    def data(self) -> Any:
        """Nothing: the text explains the numbers beside it."""
        return None


@dataclass(frozen=True)
class Facts:
    """Names with what is known about them, in order."""

    title: str
    facts: dict[str, str]
    kind: ClassVar[str] = "facts"

    def data(self) -> Any:
        """The facts."""
        return dict(self.facts)


@dataclass(frozen=True)
class Code:
    """Text that is to be copied: a command, a configuration."""

    title: str
    text: str
    kind: ClassVar[str] = "code"

    def data(self) -> Any:
        """The text."""
        return self.text


@dataclass(frozen=True)
class Grid:
    """A table; numbers are right-aligned."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    numeric: frozenset[int] = frozenset()
    kind: ClassVar[str] = "grid"

    def data(self) -> Any:
        """One dictionary per row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True)
class Pictures:
    """Pictures as PNG, each with the sentence that describes it."""

    title: str
    pictures: tuple[tuple[str, bytes], ...]
    note: str = ""
    kind: ClassVar[str] = "pictures"

    @property
    def shown(self) -> list[tuple[str, str]]:
        """Descriptions and addresses that hold the data themselves."""
        head = "data:image/png;base64,"
        return [(text, head + base64.b64encode(png).decode()) for text, png in self.pictures]

    def data(self) -> Any:
        """The descriptions; pixels stay in the page."""
        return [text for text, _ in self.pictures]


@dataclass(frozen=True)
class Estimate:
    """A posterior in numbers: mean, sd, the central 90 % interval, probability of its direction.

    ``direction`` is the posterior probability that the sign of the mean is right; NaN where a
    sign has no meaning. ``extra`` holds cells for further columns.
    """

    name: str
    mean: float
    sd: float
    lower: float
    upper: float
    direction: float = float("nan")
    extra: tuple[str, ...] = ()
    off: bool = False

    @property
    def shown_mean(self) -> str:
        """The mean, rounded to what is known."""
        return rounded(self.mean, self.sd)

    @property
    def interval(self) -> str:
        """The interval in words, rounded to what is known."""
        return f"{rounded(self.lower, self.sd)} to {rounded(self.upper, self.sd)}"

    @property
    def sign(self) -> str:
        """The probability of the direction, in words; empty where it has no meaning."""
        if not np.isfinite(self.direction) or self.off:
            return ""
        return f"{percent(self.direction)} {'positive' if self.mean > 0 else 'negative'}"

    @property
    def tone(self) -> str:
        """Whether the interval is on one side of zero, and on which."""
        if self.off or self.lower <= 0 <= self.upper:
            return "open"
        return "plus" if self.lower > 0 else "minus"

    @property
    def tip(self) -> str:
        """What is said of it in one line."""
        if self.off:
            return f"{self.name}: switched off"
        sign = f"; {self.sign}" if self.sign else ""
        sentence = f"{self.name}: {self.shown_mean}, with 90 % probability {self.interval}"
        return sentence + sign

    def data(self) -> dict[str, Any]:
        """All of its numbers in full precision."""
        numbers = ("mean", "sd", "lower", "upper", "direction")
        return {"name": self.name, **{name: number(getattr(self, name)) for name in numbers}}


@dataclass(frozen=True)
class Forest:
    """Estimates in one unit, drawn with their intervals and listed with their numbers."""

    title: str
    estimates: tuple[Estimate, ...]
    axis: str = ""  # name of the quantity, with its unit
    note: str = ""
    more: tuple[str, ...] = ()  # names of further columns
    signs: bool = True  # whether zero and the direction mean something
    total: int = 0  # number of estimates where only some are shown
    margin: float = 0.04  # of the width of the axis, on either side
    kind: ClassVar[str] = "forest"
    _ends: tuple[float, float] = field(init=False, repr=False, default=(0.0, 1.0))

    def __post_init__(self) -> None:
        """Find the ends of the axis."""
        every = np.array([(e.lower, e.upper, e.mean) for e in self.estimates], float).ravel()
        found = every[np.isfinite(every)]
        low, high = (found.min(), found.max()) if len(found) else (0.0, 1.0)
        if self.signs:
            low, high = min(low, 0.0), max(high, 0.0)
        width = (high - low) or abs(high) or 1.0
        ends = (float(low - self.margin * width), float(high + self.margin * width))
        object.__setattr__(self, "_ends", ends)

    @classmethod
    def largest(
        cls, title: str, estimates: Sequence[Estimate], *, most: int = 500, **options: Any
    ) -> Forest:
        """A forest of all estimates, or of those with the largest means."""
        shown = list(estimates)
        if len(shown) > most:
            shown = sorted(shown, key=lambda e: -abs(e.mean))[:most]
        return cls(title, tuple(shown), total=len(estimates), **options)

    def place(self, value: float) -> float:
        """Per cent of the way along the axis."""
        low, high = self._ends
        if not np.isfinite(value):
            return 0.0
        return round(100 * min(max((value - low) / (high - low), 0.0), 1.0), 3)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places of ticks in per cent, and what is written at them."""
        places = ticks(*self._ends, most=4)
        return [(self.place(p), t) for p, t in zip(places, tick_labels(places), strict=True)]

    @property
    def sentence(self) -> str:
        """What a reader who cannot see the figure is told about it."""
        clear = sum(e.tone != "open" for e in self.estimates)
        if not self.signs:
            return f"{len(self.estimates)} estimates with 90 % intervals"
        return (
            f"{len(self.estimates)} estimates with 90 % intervals, {clear} of which are "
            "on one side of zero"
        )

    def data(self) -> Any:
        """One dictionary per estimate."""
        return [estimate.data() for estimate in self.estimates]


def number(value: Any) -> float | None:
    """A number for JSON, which knows neither infinity nor NaN."""
    found = float(value)
    return found if np.isfinite(found) else None


def estimates_of(
    names: Sequence[str], draws: np.ndarray, *, means: Any = None, sds: Any = None
) -> list[Estimate]:
    """Estimates from posterior draws (draws, names); means and sds where they are known better."""
    ends = np.quantile(draws, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2], axis=0)
    means = draws.mean(axis=0) if means is None else np.asarray(means)
    sds = draws.std(axis=0) if sds is None else np.asarray(sds)
    above = np.mean(draws > 0, axis=0)
    direction = np.where(means > 0, above, 1 - above)
    direction[np.ptp(draws, axis=0) == 0] = np.nan  # a constant, of which the data say nothing
    columns = zip(names, means, sds, *ends, direction, strict=True)
    return [Estimate(str(n), float(m), float(s), float(a), float(b), float(d))
            for n, m, s, a, b, d in columns]  # fmt: skip


def normal_estimate(name: str, mean: float, sd: float, **more: Any) -> Estimate:
    """The estimate of a normal posterior."""
    from scipy import special

    half = float(special.ndtri(0.5 + LEVEL / 2)) * sd
    direction = float(special.ndtr(abs(mean) / sd)) if sd > 0 else float("nan")
    return Estimate(name, mean, sd, mean - half, mean + half, direction, **more)
