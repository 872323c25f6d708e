"""Charts of two axes: layers of bars, lines, points and bands, placed in per cent of the plot.

A template draws them as SVG. Places are per cent, so that a chart is as wide as its page while its
text and lines keep their size; all works without a script, which only adds what is shown at the
pointer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from curvi.report._blocks import number, plain, tick_labels, ticks


@dataclass(frozen=True)
class Layer:
    """A series of a chart.

    ``top`` is the upper end of bars and bands, whose lower end is ``y``; bars are ``width`` wide.
    ``tips`` is what is said of every point; without it the two numbers are.
    """

    kind: Literal["line", "points", "bars", "band"]
    x: Any
    y: Any
    label: str
    top: Any = None
    width: float = 0.0
    tone: Literal["first", "second", "muted"] = "first"
    tips: tuple[str, ...] = ()

    def thinned(self, most: int = 300) -> Layer:
        """Of a long series, points that are evenly spaced, the last one among them."""
        count = len(self.x)
        finite = np.isfinite(np.asarray(self.x, float)) & np.isfinite(np.asarray(self.y, float))
        kept = np.flatnonzero(finite)
        if len(kept) > most:
            kept = kept[np.unique(np.linspace(0, len(kept) - 1, most).round().astype(int))]
        if len(kept) == count:
            return self
        return Layer(
            self.kind, np.asarray(self.x)[kept], np.asarray(self.y)[kept], self.label,
            None if self.top is None else np.asarray(self.top)[kept], self.width, self.tone,
            tuple(self.tips[i] for i in kept) if self.tips else (),
        )  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """A straight line for comparison: from one point to another."""

    start: tuple[float, float]
    end: tuple[float, float]
    label: str


@dataclass(frozen=True)
class Mark:
    """A point of a layer: its place in per cent, and what is said at the pointer."""

    x: float
    y: float
    tip: str
    width: float = 0.0
    height: float = 0.0


@dataclass(frozen=True)
class Chart:
    """Layers over shared axes, with a sentence for those who cannot see them."""

    title: str
    sentence: str
    x_label: str
    y_label: str
    layers: tuple[Layer, ...]
    rules: tuple[Rule, ...] = ()
    note: str = ""
    x_ends: tuple[float, float] | None = None
    y_ends: tuple[float, float] | None = None
    square: bool = False
    margin: float = 0.04  # of the width of an axis, on either side
    kind: ClassVar[str] = "chart"

    @property
    def drawn(self) -> list[Layer]:
        """The layers as they are drawn; those without a finite point are left out."""
        return [layer for layer in (each.thinned() for each in self.layers) if len(layer.x)]

    def _span(self, axis: str) -> tuple[float, float]:
        given = self.x_ends if axis == "x" else self.y_ends
        if given is not None:
            return given
        values = []
        for layer in self.drawn:
            values.append(np.asarray(getattr(layer, axis), float))
            if axis == "y" and layer.top is not None:
                values.append(np.asarray(layer.top, float))
            if axis == "x" and layer.width:
                x = np.asarray(layer.x, float)
                values += [x - layer.width / 2, x + layer.width / 2]
        place = 0 if axis == "x" else 1
        values += [np.array([rule.start[place], rule.end[place]]) for rule in self.rules]
        every = np.concatenate(values) if values else np.array([0.0, 1.0])
        low, high = float(every.min()), float(every.max())
        width = (high - low) or abs(high) or 1.0
        bars = axis == "y" and any(layer.kind == "bars" for layer in self.layers) and low == 0
        return (low if bars else low - self.margin * width), high + self.margin * width

    def place(self, axis: str, value: float) -> float:
        """Per cent from the left or from the top."""
        low, high = self._span(axis)
        share = min(max((value - low) / (high - low), -0.01), 1.01)
        return round(100 * (share if axis == "x" else 1 - share), 3)

    def ticks(self, axis: str) -> list[tuple[float, str]]:
        """Places of the ticks in per cent, and what is written at them."""
        low, high = self._span(axis)
        places = ticks(low, high, most=5)
        if axis == "x" and len(places) > 1 and places[1] - places[0] < 1 and self._counted:
            places = [float(k) for k in range(math.ceil(low), math.floor(high) + 1)]
        texts = tick_labels(places)
        return [(self.place(axis, p), text) for p, text in zip(places, texts, strict=True)]

    @property
    def _counted(self) -> bool:
        """Whether the horizontal axis counts steps, codes or events."""
        return all(np.all(np.asarray(layer.x) % 1 == 0) for layer in self.drawn)

    def path(self, layer: Layer) -> str:
        """The corners of a line or a band, in a plane of 100 by 100."""
        xs = [self.place("x", float(v)) for v in layer.x]
        low = [self.place("y", float(v)) for v in layer.y]
        points = list(zip(xs, low, strict=True))
        if layer.kind == "band":
            high = [self.place("y", float(v)) for v in layer.top]
            points += list(zip(xs, high, strict=True))[::-1]
        return " ".join(f"{x:g},{y:g}" for x, y in points)

    def marks(self, layer: Layer) -> list[Mark]:
        """The points of a layer; of bars, their corners and sizes."""
        tips = layer.tips or tuple(
            f"{layer.label}: {plain(float(y))} at {plain(float(x))}"
            for x, y in zip(layer.x, layer.y, strict=True)
        )
        out = []
        for i, (x, y, tip) in enumerate(zip(layer.x, layer.y, tips, strict=True)):
            if layer.kind != "bars":
                out.append(Mark(self.place("x", float(x)), self.place("y", float(y)), tip))
                continue
            left, right = (self.place("x", float(x) + s * layer.width / 2) for s in (-1, 1))
            bottom, top = self.place("y", float(y)), self.place("y", float(layer.top[i]))
            out.append(Mark(left, top, tip, right - left, max(bottom - top, 0.0)))
        return out

    @property
    def table(self) -> list[tuple[str, str, str]]:
        """Every point as text, for those who read the numbers instead."""
        out = []
        for layer in self.drawn:
            upper = layer.y if layer.top is None else layer.top
            for x, y, top in zip(layer.x, layer.y, upper, strict=True):
                value = plain(float(top if layer.kind == "bars" else y))
                if layer.kind == "band":
                    value += f" to {plain(float(top))}"
                out.append((layer.label, plain(float(x)), value))
        return out

    def data(self) -> Any:
        """The layers in full length and precision."""
        return [
            {
                "label": layer.label,
                "x": [number(v) for v in layer.x],
                "y": [number(v) for v in layer.y],
                **({} if layer.top is None else {"top": [number(v) for v in layer.top]}),
            }
            for layer in self.layers
        ]


def histogram_bins(values: np.ndarray, *, whole: bool) -> np.ndarray:
    """Edges of bins: one per count while there are few, otherwise by the quartiles."""
    low, high = float(np.min(values)), float(np.max(values))
    if whole and high - low <= 40:
        return np.arange(math.floor(low), math.ceil(high) + 2) - 0.5
    spread = float(np.subtract(*np.quantile(values, [0.75, 0.25])))
    width = 1.4 * spread * len(values) ** (-1 / 3) if spread > 0 else (high - low) / 10 or 1.0
    count = int(min(max((high - low) / width, 8), 40))
    return np.linspace(low, high if high > low else low + 1, count + 1)
