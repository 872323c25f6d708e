"""Does the model describe the data? Charts from observations and predictions, arrays in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from curvi.report._blocks import LEVEL, Grid, Prose, percent, plain, rounded
from curvi.report._chart import Chart, Layer, Rule, histogram_bins
from curvi.report._page import Verdict


def calibration(observed: np.ndarray, probability: np.ndarray, what: str) -> Chart:
    """How often rows with a predicted probability were positive, beside that probability.

    The band holds nine of ten points of a model whose probabilities are right.

    Parameters
    ----------
    observed : array of bool, (rows,)
        Whether it was so.
    probability : array, (rows,)
        The predicted probabilities.
    what : str
        Name of the event.
    """
    from scipy import stats

    parts = _groups(probability)
    mean = np.array([probability[part].mean() for part in parts])
    share = np.array([observed[part].mean() for part in parts])
    count = np.array([len(part) for part in parts])
    tail = 0.5 - LEVEL / 2
    low, high = (stats.binom.ppf(q, count, mean) / count for q in (tail, 1 - tail))
    inside = int(np.sum((share >= low) & (share <= high)))
    tips = tuple(
        f"{n} rows with a predicted {100 * p:.0f} %: it was so in {100 * s:.0f} %"
        for n, p, s in zip(count, mean, share, strict=True)
    )
    return Chart(
        title="Calibration",
        sentence=f"Observed against predicted probability of {what} in {len(parts)} groups of "
        f"rows; {inside} of them are inside the band of a model that is right.",
        x_label=f"predicted probability of {what}",
        y_label="share of rows in which it was so",
        layers=(
            Layer("band", mean, low, "90 % of such groups, if the model is right", high),
            Layer("points", mean, share, "groups of rows", tips=tips),
        ),
        rules=(Rule((0.0, 0.0), (1.0, 1.0), "predicted = observed"),),
        note="Rows are grouped by their predicted probability. Points near the line: when the "
        "model says 80 %, it happens in 80 % of the cases.",
        x_ends=(-0.03, 1.03),
        y_ends=(-0.03, 1.03),
        square=True,
    )


def _groups(probability: np.ndarray, *, bins: int = 10, least_rows: int = 8) -> list[np.ndarray]:
    """Rows by probability: steps of equal width, which show the middle; small ones are joined."""
    step = np.minimum((probability * bins).astype(int), bins - 1)
    parts: list[np.ndarray] = []
    for k in range(bins):
        part = np.flatnonzero(step == k)
        if parts and (len(parts[-1]) < least_rows or 0 < len(part) < least_rows):
            parts[-1] = np.concatenate([parts[-1], part])
        elif len(part):
            parts.append(part)
    return parts


def predictive(observed: np.ndarray, replicated: np.ndarray, what: str) -> Chart:
    """The distribution of the observations beside those of data simulated from the model.

    Parameters
    ----------
    observed : array, (rows,)
        The responses.
    replicated : array, (draws, rows)
        Responses drawn from the posterior predictive distribution.
    what : str
        Name of the response.
    """
    whole = bool(np.all(observed == np.round(observed)))
    edges = histogram_bins(observed, whole=whole)
    simulated = np.array([np.histogram(draw, edges)[0] for draw in replicated])
    counts = np.histogram(observed, edges)[0]
    (low, high), middle = central(simulated), np.median(simulated, axis=0)
    centre, width = 0.5 * (edges[1:] + edges[:-1]), float(edges[1] - edges[0])
    inside = int(np.sum((counts >= low) & (counts <= high)))
    names = [plain(c, 3) if whole and width == 1 else f"{plain(a, 3)} to {plain(b, 3)}"
             for a, b, c in zip(edges[:-1], edges[1:], centre, strict=True)]  # fmt: skip
    tips = tuple(
        f"{name}: {n} rows observed, {plain(lo)} to {plain(hi)} expected"
        for name, n, lo, hi in zip(names, counts, low, high, strict=True)
    )
    return Chart(
        title="Posterior predictive check",
        sentence=f"Histogram of {what} beside histograms of simulated data: {inside} of "
        f"{len(counts)} bars are within the range of 90 % of the simulations.",
        x_label=what,
        y_label="rows",
        layers=(
            Layer("bars", centre, np.zeros(len(centre)), "observed", counts, width, tips=tips),
            Layer("band", centre, low, "90 % of simulated data sets", high, tone="second"),
            Layer("line", centre, middle, "median of the simulations", tone="second"),
        ),
        note=f"{len(replicated)} data sets were simulated from the fitted model. Bars outside the "
        "band show what it cannot explain.",
    )


def evenly(count: int, most: int = 8) -> np.ndarray:
    """Places of a few rows, evenly spaced, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


def residuals(observed: np.ndarray, expected: np.ndarray, what: str) -> Chart:
    """Observed less expected against expected, of at most 400 rows evenly spaced."""
    kept = evenly(len(observed), 400)
    left = (observed - expected)[kept]
    tips = tuple(
        f"row {i + 1}: observed {plain(o)}, expected {plain(e)}"
        for i, o, e in zip(kept, observed[kept], expected[kept], strict=True)
    )
    low, high = float(expected[kept].min()), float(expected[kept].max())
    return Chart(
        title="Residuals",
        sentence=f"Residuals of {len(kept)} rows against the expected {what}; their sd is "
        f"{plain(float(np.std(left)))}.",
        x_label=f"expected {what}",
        y_label="observed less expected",
        layers=(Layer("points", expected[kept], left, "rows", tips=tips),),
        rules=(Rule((low, 0.0), (high, 0.0), "no difference"),),
        note="A cloud without a shape is what a good model leaves. A bend or a funnel is something "
        "that it has missed.",
    )


def few_rows(
    observed: Any, expected: np.ndarray, lower: np.ndarray, upper: np.ndarray, what: str
) -> Grid:
    """Observations and predictions of a few rows, evenly spaced."""
    rows = []
    for i in evenly(len(expected)):
        size = float(upper[i] - lower[i]) / 3
        ends = f"{rounded(float(lower[i]), size)} to {rounded(float(upper[i]), size)}"
        seen = observed[i]
        text = str(seen) if isinstance(seen, str) else plain(float(seen))
        rows.append((str(i + 1), text, rounded(float(expected[i]), size), ends))
    return Grid(
        "Predictions of a few rows",
        ("Row", f"Observed {what}", "Expected", "90 % interval"),
        tuple(rows),
        numeric=frozenset({0, 1, 2, 3}),
    )


def few_classes(
    classes: Sequence[str], chance: np.ndarray, *, what: str = "", observed: Any = None
) -> Grid:
    """Predicted classes of a few rows, evenly spaced, beside codes of the observed ones."""
    best = chance.argmax(axis=1)
    rows = tuple(
        (
            str(i + 1), *(() if observed is None else (classes[observed[i]],)), classes[best[i]],
            percent(float(chance[i, best[i]])),
        )
        for i in evenly(len(chance))
    )  # fmt: skip
    seen = () if observed is None else (f"Observed {what}",)
    columns = ("Row", *seen, "Predicted", "Probability of the predicted class")
    title = "Predictions of a few rows"
    return Grid(title, columns, rows, numeric=frozenset({0, len(columns) - 1}))


def described(
    observed: np.ndarray, expected: np.ndarray, ends: Any, what: str, said: str,
    replicated: np.ndarray | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """How well numbers are described: coverage, a check by simulation, residuals, a few rows.

    ``ends`` are the lower and upper ends of the 90 % intervals of the rows.
    """
    lower, upper = ends
    inside = f"{percent(coverage(observed, lower, upper))} of the rows are inside their 90 % "
    check = () if replicated is None else (predictive(observed, replicated, what),)
    return (
        Prose(f"{inside}interval. {said}"),
        *check,
        residuals(observed, expected, what),
        few_rows(observed, expected, lower, upper, what),
    )


def central(draws: np.ndarray) -> np.ndarray:
    """Lower and upper ends between which one more draw is with a probability of 90 %.

    Between the ranks ``p (n + 1)``: interpolation within the range of the draws is too narrow by a
    tenth where they are 20.
    """
    tail = 0.5 - LEVEL / 2
    return np.quantile(draws, [tail, 1 - tail], axis=0, method="weibull")


def coverage(observed: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> float:
    """Share of rows inside their interval."""
    return float(np.mean((observed >= lower) & (observed <= upper)))


def missed(blocks: Iterable[Any], *, least: int = 4, share: float = 0.25) -> str:
    """What charts say that the model does not explain; empty where it explains the data.

    Of a model that is right one point in ten is outside its band. A quarter, and at least four,
    are too many (``share``, ``least``): less than one right model in a hundred is called wrong.
    """
    for chart in blocks:
        bands = [layer for layer in getattr(chart, "layers", ()) if layer.kind == "band"]
        seen = [layer for layer in getattr(chart, "layers", ()) if layer.kind in ("bars", "points")]
        if not bands or not seen:
            continue
        values = seen[0].y if seen[0].kind == "points" else seen[0].top
        outside = (np.asarray(values) < bands[0].y) | (np.asarray(values) > bands[0].top)
        if seen[0].kind == "bars":  # where nothing is, and nothing expected, nothing is explained
            outside = outside[(np.asarray(values) > 0) | (np.asarray(bands[0].top) > 0)]
        if outside.sum() >= least and outside.mean() > share:
            return (
                f"{int(outside.sum())} of {len(outside)} parts of the data are outside the range "
                f"that the model expects: see \u201c{chart.title}\u201d."
            )
    return ""


def with_misses(verdict: Verdict, blocks: Iterable[Any]) -> Verdict:
    """A good verdict on the fit, with a warning where the model does not describe the data."""
    said = missed(blocks)
    if not said or verdict.level != "good":
        return verdict
    headline = "The fit is right, but the model does not describe these data well."
    advice = (
        "Estimates are those of the best such model. Try another kind of model, a transformation "
        "of the response or of a column, or columns that are still left out.",
    )
    return Verdict("caution", headline, (*verdict.sentences, said), (*advice, *verdict.advice[1:]))
