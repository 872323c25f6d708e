"""The report of a fit: verdict, estimates, checks, convergence, and how to repeat it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

import jax
import numpy as np

from curvi._core.errors import InputError, Outcome
from curvi.diagnostics._evaluation import GRADES
from curvi.diagnostics._pictures import drawn, estimates_for
from curvi.diagnostics._summary import names_of
from curvi.report import (
    READ,
    Facts,
    Forest,
    Grid,
    Page,
    Prose,
    Tile,
    Verdict,
    bound_chart,
    bound_tile,
    calibration,
    central,
    described,
    percent,
    plain,
    rounded,
)


@dataclass
class FitPage(Page):
    """What a page says about a result; see :meth:`curvi.FitResult.report`."""

    parts: ClassVar = {
        "estimates": "Estimates", "replicated": "Fit to the data", "checks": "Checks",
        "history": "Convergence", "facts": "Model and data",
    }  # fmt: skip
    names: list[str] | None = None
    data: tuple[Any, Any] = (None, None)  # observed, and draws of the predictive distribution

    @cached_property
    def labels(self) -> list[str]:
        """A name for every number."""
        return names_of(self.model.mean, self.names, self.model.target.labels)

    @cached_property
    def draws(self) -> np.ndarray | None:
        """Draws of all numbers, unless these are too many."""
        return drawn(self.model)

    def heading(self) -> tuple[str, str]:
        """What was fitted, in how long."""
        family, seconds = type(self.model.family).__name__, plain(self.model.seconds, 2)
        what = f"{len(self.labels)} parameters, {family} family, {seconds} s"
        return "Posterior of a fit", what

    def verdict(self) -> Verdict:
        """Whether to trust the numbers, in words, and what to do."""
        return verdict_of(self.model)

    def tiles(self) -> list[Tile]:
        """Signs, the bound, how well q matches, the time."""
        result = self.model
        return [
            *self.clear_tile(),
            bound_tile(result.elbo, f"nats, standard error {result.elbo_se:.2g}"),
            Tile(
                "Match of the family",
                percent(result.relative_ess),
                "of its draws are effective",
            ),
            Tile("Time", f"{plain(result.seconds, 2)} s", f"{result.steps} steps"),
        ]

    def estimates(self) -> tuple[Any, ...]:
        """One forest for every array."""
        return (Prose(READ), *_forests(self.model, self.labels, self.draws))

    def replicated(self) -> tuple[Any, ...]:
        """Charts of observations, where they are given."""
        return predictive_blocks(*self.data)

    def checks(self) -> tuple[Any, ...]:
        """How far to trust it, what was tried, what is hard to tell apart."""
        return _checks(self.model, self.labels, self.draws)

    def history(self) -> tuple[Any, ...]:
        """The bound along the run."""
        trace = self.model.trace
        if not len(trace["elbo"]):
            return (Prose("No step was taken."),)
        return (bound_chart(trace["step"], trace["elbo"], "step"),)

    def facts(self) -> tuple[Any, ...]:
        """Target, family, method and draws."""
        return (_model(self.model),)

    def repeat(self) -> tuple[str, dict[str, Any]]:
        """The call of ``fit``."""
        result = self.model
        options = ("family", "method", "draws", "batch_size", "mc_tolerance")
        configuration = {name: getattr(result, name) for name in options}
        family = '"auto"' if result.rungs else repr(result.family)
        key = np.asarray(result.key_data).tolist()
        return f"curvi.fit(target, family={family})", {**configuration, "random key": key}


def verdict_of(result: Any) -> Verdict:
    """Whether to trust the numbers, in words, and what to do."""
    if not result.converged:
        headline = "Do not use these numbers yet: the fit has not finished."
        if result.outcome is not Outcome.BUDGET and not result.interrupted:
            headline = "Do not use these numbers: the fit failed."
        return Verdict("bad", headline, (result.message,), result.warnings)
    if result.warnings:
        headline = "The fit converged, but parts of the answer may be wrong."
        return Verdict("caution", headline, (), result.warnings)
    sentences = [
        "The fit stopped by itself at the optimum, and independent draws confirm that it matches "
        "the posterior."
    ]
    if result.correction is not None:
        sentences = [
            "The fit stopped by itself at the optimum. A Gaussian alone does not describe this "
            f"posterior well enough, so the numbers come from {len(result.correction.draws)} draws "
            f"that correct it (by {result.correction.kind}), worth at least "
            f"{result.correction.ess:.0f} independent ones."
        ]
    if result.mc_error is not None:
        sentences.append(
            f"The means are known to {result.mc_error:.1g} of their posterior standard deviations."
        )
    advice = ("Nothing has to be done. Whether the model suits the data is another question: "
              "compare its predictions with what was observed.",)  # fmt: skip
    return Verdict("good", "The numbers can be used.", tuple(sentences), advice)


def predictive_blocks(observed: Any, replicated: Any) -> tuple[Any, ...]:
    """Charts of observations against draws of the posterior predictive distribution.

    Raises
    ------
    InputError
        If one of the two is missing, or their shapes do not fit.
    """
    if observed is None and replicated is None:
        return ()
    if observed is None or replicated is None:
        raise InputError("observed and replicated belong together; give both, or none")
    y, drawn = np.asarray(observed, float), np.asarray(replicated, float)
    if y.ndim != 1 or drawn.ndim != 2 or drawn.shape[1] != len(y) or not drawn.size:
        raise InputError(
            f"observed has shape {y.shape} and replicated {drawn.shape}; give (rows,) and "
            "(draws, rows)"
        )
    if not (np.isfinite(y).all() and np.isfinite(drawn).all()):
        raise InputError("observed or replicated is not finite; leave out what is missing")
    expected = drawn.mean(axis=0)
    if set(np.unique(y)) <= {0.0, 1.0}:
        return (calibration(y > 0, expected, "a one"),)
    said = "Far fewer would mean predictions that are too sure of themselves."
    return described(y, expected, central(drawn), "response", said, drawn)


def _forests(result: Any, labels: list[str], draws: np.ndarray | None) -> list[Forest]:
    """One forest for every array; numbers of similar size that stand alone share one."""
    estimates = estimates_for(result, labels, draws)
    paths, _ = jax.tree_util.tree_flatten_with_path(result.mean)
    found, at = [], 0
    free = getattr(result.target, "constrain", None) is None
    alone: list[int] = []
    for path, leaf in paths:
        size = int(np.size(leaf))
        here, at = list(range(at, at + size)), at + size
        if size == 1:
            alone += here
            continue
        stem = jax.tree_util.keystr(path, simple=True, separator=".") or "Parameters"
        found.append(_forest(stem, here, estimates, draws, free))
    first = []
    for _, group in groupby(_by_size(alone, estimates), key=lambda pair: pair[0]):
        mine = sorted(i for _, i in group)
        title = "Parameters" if len(mine) > 1 else labels[mine[0]]
        first.append(_forest(title, mine, estimates, draws, free))
    return first + found


def _by_size(
    alone: list[int], estimates: Any, *, comparable: float = 30.0
) -> list[tuple[int, int]]:
    """Numbers in order of size, each with the number of its group.

    ``comparable``: ratio of sizes up to which numbers share an axis.
    """
    size = {i: max(abs(estimates[i].lower), abs(estimates[i].upper), 1e-300) for i in alone}
    out: list[tuple[int, int]] = []
    group, least = 0, float("inf")
    for i in sorted(alone, key=lambda i: size[i]):
        if size[i] > comparable * least:
            group, least = group + 1, size[i]
        least = min(least, size[i])
        out.append((group, i))
    return out


def _forest(
    title: str, here: list[int], estimates: Any, draws: np.ndarray | None, free: bool
) -> Forest:
    rows = [estimates[i] for i in here]
    # What a constraint keeps above zero has no direction that the data could decide.
    lowest = min(e.lower for e in rows) if draws is None else np.min(draws[:, here])
    return Forest.largest(title, rows, signs=free or bool(lowest <= 0))


def _checks(result: Any, labels: list[str], draws: np.ndarray | None) -> tuple[Any, ...]:
    k, ess = result.khat, result.relative_ess
    if result.correction is not None:
        answer = f"yes: {result.correction.sentence()}"
    else:
        answer = "no: the numbers are those of q"
    error = "not known" if result.mc_error is None else f"{result.mc_error:.1g} posterior sds"
    facts = Facts(
        "How far to trust it",
        {
            "converged": f"{'yes' if result.converged else 'no'}. {result.message}",
            "Monte-Carlo error": f"{error} at most; below 0.05 it does not matter",
            "Pareto k": f"{k:.2f}; {_of_k(k)}",
            "match of q": f"{percent(ess)} of independent draws are effective for the posterior",
            "corrected": answer,
        },
    )
    blocks: list[Any] = [facts]
    if result.rungs:
        rows = tuple((r.name, r.note, percent(r.relative_ess), f"{r.seconds:.2f} s")
                     for r in result.rungs)  # fmt: skip
        columns = ("Family or correction", "What came of it", "Match", "Time")
        blocks.append(Grid("What was tried", columns, rows, numeric=frozenset({2, 3})))
    pairs = _correlated(labels, draws)
    if pairs:
        blocks.append(
            Grid(
                "Hard to tell apart",
                ("First", "Second", "Correlation"),
                pairs,
                "The data say much about a combination of these two, and less about each alone.",
                numeric=frozenset({2}),
            )
        )
    return tuple(blocks)


def _of_k(k: float) -> str:
    return "fine below 0.7" if k <= GRADES.worst_k else "above 0.7, q misses part of the posterior"


def _correlated(
    labels: list[str], draws: np.ndarray | None, *, strong: float = 0.6, pairs: int = 8,
    most: int = 400,
) -> tuple[tuple[str, ...], ...]:  # fmt: skip
    """Pairs of parameters with strong correlations, the strongest first; of at most ``most``."""
    if draws is None:
        return ()
    spread = draws.std(axis=0)
    if not 2 <= draws.shape[1] <= most or not np.all(spread > 0):
        return ()
    matrix = np.corrcoef(draws, rowvar=False)
    above = np.triu(np.abs(matrix), 1)
    order = np.argsort(-above, axis=None)[:pairs]
    places = [np.unravel_index(flat, above.shape) for flat in order]
    return tuple(
        (labels[i], labels[j], rounded(float(matrix[i, j]), 0.1))
        for i, j in places
        if above[i, j] > strong
    )


def _model(result: Any) -> Facts:
    target = result.target
    facts = {
        "parameters": str(target.dimension),
        "precision": str(np.dtype(target.dtype)),
        "family": repr(result.family),
        "method": repr(result.method),
        "draws": f"{result.draws.num_draws} {result.draws.kind}, "
        + ("fresh every step" if result.draws.fresh else "fixed"),
    }
    if getattr(target, "rows", None) is not None:
        facts["rows of data"] = f"{target.num_rows:,}"
    if result.batch_size is not None:
        facts["rows per step"] = f"{result.batch_size:,}"
    return Facts("What was inferred, and how", facts)
