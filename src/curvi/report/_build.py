"""What every report is built from: what a page asks of a fit, and parts that all pages have."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from curvi._core.errors import InputError
from curvi.io import versions
from curvi.report._blocks import Code, Estimate, Facts, Forest, plain
from curvi.report._chart import Chart, Layer
from curvi.report._page import Report, Tab, Tile, Verdict
from curvi.report._predictive import with_misses


@dataclass(frozen=True)
class Amounts:
    """What a page may simulate.

    Attributes
    ----------
    replicates, fewest_replicates : int
        Data sets drawn from a fit, and how few will do.
    numbers : int
        Of all replicates together.
    """

    replicates: int = 200
    fewest_replicates: int = 20
    numbers: int = 20_000_000


AMOUNTS = Amounts()
_DIRECT = "Read an estimate with its interval: with 90 % probability the value is inside. "
READ = (
    _DIRECT + "\u201cDirection\u201d is the probability that the sign is right; a hollow marker "
    "means that zero is inside the interval."
)
READ_PLAIN = _DIRECT.strip()


def bound_chart(x: Any, elbo: Any, x_label: str, *, per_row: bool = False) -> Chart:
    """The bound along a run; the first values may lie far below and are cut off."""
    x, elbo = np.asarray(x, float), np.asarray(elbo, float)
    finite = np.isfinite(elbo)
    ends = None
    sentence = "The bound was not finite at any step."
    if finite.any():
        low, high = float(np.quantile(elbo[finite], 0.25)), float(elbo[finite].max())
        margin = 0.1 * (high - low) + 1e-6 * max(abs(high), 1.0)
        ends = (max(low - 5 * margin, float(elbo[finite].min()) - margin), high + margin)
        first, last = float(elbo[finite][0]), float(elbo[finite][-1])
        sentence = f"The bound went from {plain(first)} to {plain(last)}."
    unit = "nats per row" if per_row else "nats"
    return Chart(
        title="Convergence",
        sentence=sentence,
        x_label=x_label,
        y_label=f"ELBO on the step's sample [{unit}]",
        layers=(Layer("line", x, elbo, "ELBO"),),
        note="The quantity that is maximised, the evidence lower bound. A curve that has become "
        "flat has arrived.",
        y_ends=ends,
    )


def bound_tile(elbo: float, note: str = "nats") -> Tile:
    """The bound, to a tenth of a nat: less makes no difference between models."""
    return Tile("Bound (ELBO)", f"{elbo:,.1f}".replace("-", "\N{MINUS SIGN}"), note)


@dataclass
class Page:
    """A fit as a page asks for it. Each kind of fit has a subclass that answers.

    ``parts`` names the methods that fill the page in their order, with the titles of their tabs;
    one that returns nothing has no tab. The verdict hears what ``replicated`` shows.

    Attributes
    ----------
    model : object
        The fit.
    call, configuration : str and dict, optional
        How to repeat it, where it was not called from Python.
    notes : tuple of str
        More advice for the verdict.
    more_facts : dict
        What else is known of the data.
    """

    parts: ClassVar[dict[str, str]] = {}
    model: Any
    call: str | None = field(default=None, kw_only=True)
    configuration: dict[str, Any] | None = field(default=None, kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    more_facts: dict[str, str] = field(default_factory=dict, kw_only=True)

    def heading(self) -> tuple[str, str]:
        """A title, where the user gives none, and a subtitle."""
        raise NotImplementedError

    def verdict(self) -> Verdict:
        """Whether to trust the numbers, in words, and what to do."""
        raise NotImplementedError

    def tiles(self) -> list[Tile]:
        """The few numbers that matter."""
        raise NotImplementedError

    def estimates(self) -> tuple[Any, ...]:
        """Posteriors in numbers; the summary and its table hold the same ones."""
        return ()

    def replicated(self) -> tuple[Any, ...]:
        """Observations beside what the model expects of them."""
        return ()

    def facts(self) -> tuple[Any, ...]:
        """What was fitted to what."""
        raise NotImplementedError

    def history(self) -> tuple[Any, ...]:
        """How the run went."""
        return ()

    def repeat(self) -> tuple[str, dict[str, Any]]:
        """The call that made the fit, and its options."""
        return f"{self.model!r}.fit(X, y)", given(self.model)

    @functools.cached_property
    def forests(self) -> list[Forest]:
        """The estimates that are drawn."""
        return [block for block in self.estimates() if isinstance(block, Forest)]

    def clear_tile(self, shown: list[Estimate] | None = None, what: str = "") -> list[Tile]:
        """How many estimates whose sign means something have a clear one."""
        if shown is None:
            shown = [e for forest in self.forests if forest.signs for e in forest.estimates]
        signed = [e for e in shown if e.off or np.isfinite(e.direction)]  # without constants
        clear = sum(e.tone != "open" for e in signed)
        note = f"{what}90 % intervals on one side of zero"
        return [Tile("Clear direction", f"{clear} of {len(signed)}", note)] if signed else []

    def report(self, title: Any = None) -> Report:
        """The whole page."""
        heading, subtitle = self.heading()
        if title is not None and (not isinstance(title, str) or not title.strip()):
            raise InputError(f"title is {title!r}; give a text")
        blocks = {part: tuple(getattr(self, part)()) for part in self.parts}
        call, configuration = self.repeat()
        shown = json.dumps(
            self.configuration or configuration, indent=2, default=str, ensure_ascii=False
        )
        repeat = (
            Code("The call", self.call or call),
            Code("Configuration", shown),
            Facts("Versions", versions()),
        )
        tabs = [
            Tab(_KEYS.get(part, part), name, blocks[part])
            for part, name in self.parts.items()
            if blocks[part]
        ]
        return Report(
            title=heading if title is None else title,
            subtitle=subtitle,
            verdict=with_misses(self.verdict(), blocks.get("replicated", ())),
            tiles=tuple(self.tiles()),
            tabs=(*tabs, Tab("repeat", "Repeat it", repeat)),
        )


_KEYS = {"replicated": "fit", "history": "convergence", "facts": "model"}  # in addresses


def given(model: Any) -> dict[str, Any]:
    """The parameters of an estimator that have a value."""
    return {name: value for name, value in model.get_params().items() if value is not None}
