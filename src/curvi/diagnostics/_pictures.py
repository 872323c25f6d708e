"""What a result shows in a notebook: one line, a small table, figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from curvi._core import validation
from curvi._core.text import printable
from curvi._core.trees import flat_numbers
from curvi.diagnostics._summary import names_of
from curvi.plots import COLOURS, QUIET, RULE, draw_run, house_style, literal, new_figure, plot_fit
from curvi.report import Estimate, estimates_of, normal_estimate, notebook_html

_KINDS = ("fit", "forest", "pair", "convergence")


@dataclass(frozen=True)
class PictureSizes:
    """How much of a posterior a picture shows."""

    forest_rows: int = 60
    pairs: int = 6
    listed_rows: int = 12
    most_draws: int = 2000
    dots: int = 400
    # of draws of everything together
    fewest_draws: int = 200
    most_numbers: int = 20_000_000
    most_drawn: int = 20_000  # numbers from which intervals are those of normal distributions


PICTURES = PictureSizes()
_PLUS, _MINUS = COLOURS[:2]


class Shown:
    """Methods of a result for a terminal, a notebook and a paper."""

    def plot(
        self: Any, names: list[str] | None = None, *, kind: str = "fit", which: Any = None
    ) -> Any:
        """Draw the result.

        Parameters
        ----------
        names : list of str, optional
            One name for every number in ``mean``.
        kind : {"fit", "forest", "pair", "convergence"}
            The ELBO beside means with intervals; means with 50 % and 90 % intervals, filled where
            the latter is on one side of zero; scatter of pairs; the ELBO and the norm of its
            gradient against steps.
        which : list of str, optional
            Names of those to draw; by default the first 60 of a forest, and the 6 with the
            strongest correlations of pairs.

        Returns
        -------
        matplotlib Figure
            Save it with ``figure.savefig(path)``.

        Raises
        ------
        InputError
            For an unknown kind, or names that are not those of the result.
        """
        validation.one_of(kind, _KINDS, "kind")
        labels = names_of(self.mean, names, self.target.labels)
        if kind == "convergence":
            return plot_convergence(self.trace, title=self.outcome.name.lower())
        if kind == "fit":
            return plot_fit(
                self.trace, names=labels, mean=flat_numbers(self.mean), sd=flat_numbers(self.sd),
                title=f"{type(self.family).__name__}: {self.outcome.name.lower()}",
            )  # fmt: skip
        chosen = None if which is None else [
            labels.index(validation.one_of(name, tuple(labels), "which")) for name in which
        ]  # fmt: skip
        draws = flat_draws(self)
        if kind == "forest":
            kept = list(range(len(labels)))[: PICTURES.forest_rows] if chosen is None else chosen
            return plot_forest(draws[:, kept], [labels[i] for i in kept])
        kept = _correlated(draws) if chosen is None else chosen
        return plot_pairs(draws[:, kept], [labels[i] for i in kept])

    def __repr__(self: Any) -> str:
        state = "converged" if self.converged else f"NOT CONVERGED ({self.outcome.name.lower()})"
        fit = "" if self.log_ratio is None else f", Pareto k {self.khat:.2f}"
        answer = "" if self.correction is None else f", answer by {self.correction.kind}"
        return (
            f"FitResult({state}: {self.target.dimension} parameters, {self.family!r}{answer}, "
            f"ELBO {self.elbo:.2f} (se {self.elbo_se:.2g}){fit}, {self.steps} steps, "
            f"{self.seconds:.2f} s)"
        )

    def _repr_html_(self: Any) -> str:
        """The verdict and the first estimates, for a notebook."""
        from curvi.diagnostics._report import verdict_of

        labels = names_of(self.mean, None, self.target.labels)
        rows = estimates_for(self, labels[: PICTURES.listed_rows], drawn(self))
        table = [("", "mean", "90 % interval", "direction")]
        table += [(e.name, e.shown_mean, e.interval, e.sign) for e in rows]
        more = len(labels) - len(rows)
        facts = {
            "ELBO": f"{self.elbo:.2f} (se {self.elbo_se:.2g})",
            "family": repr(self.family),
            "run": f"{self.steps} steps, {self.seconds:.2f} s",
        }
        if more:
            facts["not shown"] = f"{more} more parameters; result.report('report.html') has all"
        verdict = verdict_of(self)
        return notebook_html("FitResult", facts, verdict=verdict, table=table)


def flat_draws(result: Any, *, policy: PictureSizes = PICTURES) -> np.ndarray:
    """Draws of all numbers of a result, (draws, numbers); fewer where there are many numbers."""
    count = int(
        min(
            policy.most_draws,
            max(policy.fewest_draws, policy.most_numbers // max(result.target.dimension, 1)),
        )
    )
    tree = result.sample(count)
    leaves = [np.asarray(leaf, float).reshape(count, -1) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves, axis=1)


def estimates_for(result: Any, labels: list[str], draws: np.ndarray | None) -> list[Estimate]:
    """Estimates of the first numbers of a result, from draws where there are any."""
    count = len(labels)
    means, sds = flat_numbers(result.mean)[:count], flat_numbers(result.sd)[:count]
    if draws is None:
        triples = zip(labels, means.tolist(), sds.tolist(), strict=True)
        return [normal_estimate(name, mean, sd) for name, mean, sd in triples]
    return estimates_of(labels, draws[:, :count], means=means, sds=sds)


def drawn(result: Any, *, policy: PictureSizes = PICTURES) -> np.ndarray | None:
    """Draws of all numbers of a result; None where there are too many numbers."""
    return (
        flat_draws(result, policy=policy) if result.target.dimension <= policy.most_drawn else None
    )


def _correlated(draws: np.ndarray, *, policy: PictureSizes = PICTURES) -> list[int]:
    """The few coordinates that are most correlated with another, in their own order."""
    count = draws.shape[1]
    if count <= policy.pairs or not np.all(draws.std(axis=0) > 0):
        return list(range(min(count, policy.pairs)))
    matrix = np.abs(np.corrcoef(draws, rowvar=False)) - np.eye(count)
    return sorted(np.argsort(-matrix.max(axis=0), kind="stable")[: policy.pairs].tolist())


@house_style
def plot_forest(draws: np.ndarray, names: list[str]) -> Any:
    """Means with 50 % and 90 % intervals, hollow where zero is inside the latter."""
    estimates = estimates_of(names, draws)
    inner = np.quantile(draws, [0.25, 0.75], axis=0)
    figure = new_figure(7, 1.1 + 0.3 * max(len(names), 3))
    axis = figure.subplots()
    axis.axvline(0, color=RULE, linewidth=1, zorder=0)
    colours = {"plus": _PLUS, "minus": _MINUS, "open": QUIET}
    for place, estimate in enumerate(estimates):
        colour = colours[estimate.tone]
        axis.plot(
            [estimate.lower, estimate.upper],
            [place, place],
            color=colour,
            linestyle="-",
            linewidth=1.2,
        )
        axis.plot(inner[:, place], [place, place], color=colour, linestyle="-", linewidth=3.5)
        face = "white" if estimate.tone == "open" else colour
        axis.plot(estimate.mean, place, "o", color=colour, markerfacecolor=face, markersize=6)
    axis.set_yticks(range(len(names)), literal(list(map(printable, names))))
    axis.invert_yaxis()
    axis.set_xlabel("posterior mean with 50 % and 90 % intervals")
    return figure


@house_style
def plot_pairs(draws: np.ndarray, names: list[str]) -> Any:
    """Histograms on the diagonal, scatter below it."""
    count, labels = len(names), literal(list(map(printable, names)))
    figure = new_figure(1.9 * count + 0.6, 1.9 * count + 0.4)
    axes = figure.subplots(count, count, squeeze=False)
    for i in range(count):
        for j in range(count):
            axis = axes[i, j]
            if j > i:
                axis.set_axis_off()
                continue
            if i == j:
                axis.hist(draws[:, i], bins=30, color=_PLUS, alpha=0.6)
                axis.set_yticks([])
            else:
                x, y = draws[: PICTURES.dots, j], draws[: PICTURES.dots, i]
                axis.scatter(x, y, s=5, color=_PLUS, alpha=0.4, linewidths=0)
            axis.tick_params(labelsize=7, labelbottom=i == count - 1, labelleft=0 == j < i)
            if i == count - 1:
                axis.set_xlabel(labels[j], fontsize=9)
            if j == 0 and i:
                axis.set_ylabel(labels[i], fontsize=9)
    return figure


@house_style
def plot_convergence(trace: dict[str, np.ndarray], title: str = "") -> Any:
    """The ELBO, and the norm of its gradient, against steps."""
    figure = new_figure(7, 4.6)
    upper, lower = draw_run(figure, trace["step"], trace["elbo"], trace["grad_norm"], True)
    upper.set_ylabel("ELBO on the\nstep's sample [nats]")
    lower.set_xlabel("step")
    figure.suptitle(title)
    return figure
