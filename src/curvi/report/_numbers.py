"""Numbers as a reader wants them: rounded to what is known, and ticks at round places."""

from __future__ import annotations

import math

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
