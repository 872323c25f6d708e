"""Recorded results as figures in the house style, one for each section of the benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from posterior_tables import widely_measured

from curvi.plots import house_style, new_figure
from curvi.plots._style import COLOURS, LINES, MARKERS, QUIET

Row = dict[str, Any]
OURS = "curvi"
_FARTHEST = 1e5  # nats: an axis goes no further


def dots(panel: Any, rows: list[str], series: dict[str, list[float | None]]) -> None:
    """One line per row, one marker per series; what is missing is left out."""
    place = np.arange(len(rows))
    for number, (label, values) in enumerate(series.items()):
        known = np.array([np.nan if value is None else value for value in values], float)
        panel.plot(
            known, place, MARKERS[number % len(MARKERS)], color=COLOURS[number % len(COLOURS)],
            markersize=6, linestyle="none", label=label, alpha=0.9,
        )  # fmt: skip
    panel.set_yticks(place, rows)
    panel.set_ylim(len(rows) - 0.5, -0.5)


def _legend_above(figure: Any, columns: int) -> None:
    """One legend for all panels, with each label once."""
    found = [panel.get_legend_handles_labels() for panel in figure.axes]
    handles = {label: handle for pair in found for handle, label in zip(*pair, strict=True)}
    figure.legend(handles.values(), handles, loc="outside upper left", ncols=columns)


@house_style
def draws(result: Row) -> Any:
    """Errors of means by the kind and number of draws."""
    kinds = list(dict.fromkeys(row["draws"] for row in result["rows"]))
    numbers = sorted({row["num_draws"] for row in result["rows"]})
    figure = new_figure(7.5, 2.8)
    panel = figure.subplots()
    found = {(row["draws"], row["num_draws"]): row["mean_rms"] for row in result["rows"]}
    dots(panel, kinds, {f"{m} draws": [found.get((kind, m)) for kind in kinds] for m in numbers})
    panel.set(xscale="log", xlabel="error of the mean [posterior sds, root mean square]")
    _legend_above(figure, 2)
    return figure


@house_style
def products(result: Row) -> Any:
    """Cost of a product in gradients, against the number of parameters."""
    figure = new_figure(7.5, 3.2)
    panel = figure.subplots()
    names = list(dict.fromkeys(r["problem"] for r in result["rows"] if r["use"] == "cost"))
    for number, name in enumerate(names):
        rows = [r for r in result["rows"] if r["problem"] == name and r["use"] == "cost"]
        for kind, style in (("linearised", "-"), ("jvp", ":")):
            label = f"{name}, {'linearised once' if kind == 'linearised' else 'jvp of grad'}"
            panel.plot(
                [r["parameters"] for r in rows], [r[f"{kind}_in_gradients"] for r in rows],
                marker=MARKERS[number], color=COLOURS[number], linestyle=style, label=label,
            )  # fmt: skip
    panel.set(xscale="log", xlabel="parameters", ylabel="cost of a product [gradients]")
    panel.set_ylim(0, None)
    panel.legend()
    return figure


@house_style
def trust_region(result: Row) -> Any:
    """Seconds of three solvers on the same objective."""
    solvers = ("TrustRegion", "trust-ncg", "L-BFGS-B")
    rows = [f"{row['problem']}, D = {row['dimension']}" for row in result["rows"]]
    figure = new_figure(8.5, 1.4 + 0.34 * len(rows))
    panel = figure.subplots()
    dots(panel, rows, {s: [row[s]["seconds"] for row in result["rows"]] for s in solvers})
    panel.set(xscale="log", xlabel="seconds, compiled")
    _legend_above(figure, 3)
    return figure


@house_style
def conjugate(result: Row) -> Any:
    """Posterior of a conjugate model by three libraries, with the true one."""
    found = {method: row for method, row in result["normal"].items() if "mean" in row}
    figure = new_figure(7.5, 1.2 + 0.4 * len(found))
    panel = figure.subplots()
    place = np.arange(len(found))
    mean, sd = (np.array([row[key] for row in found.values()]) for key in ("mean", "sd"))
    panel.axvspan(8 - 2 * 0.447, 8 + 2 * 0.447, color=COLOURS[2], alpha=0.35, linewidth=0)
    panel.errorbar(mean, place, xerr=2 * sd, fmt="o", color=COLOURS[0])
    panel.set_yticks(place, list(found))
    panel.set_ylim(len(found) - 0.5, -0.5)
    panel.set_xlabel("mean ± 2 sd; the band is the true posterior")
    return figure


@house_style
def cold_start(result: Row) -> Any:
    """Where the seconds of a first fit go."""
    families = ("MeanField", "FullRank")
    figure = new_figure(7.5, 2.2)
    panel = figure.subplots()
    parts = {
        "import jax": [result[f]["import_jax"] for f in families],
        "import curvi": [result[f]["import_curvi"] for f in families],
        "first fit": [result[f]["first_fit"] for f in families],
    }
    left = np.zeros(len(families))
    for number, (label, values) in enumerate(parts.items()):
        panel.barh(families, values, left=left, color=COLOURS[(6, 2, 0)[number]], label=label)
        left += values
    for row, family in enumerate(families):
        text = f"  second fit {result[family]['second_fit']:.2f} s"
        panel.text(left[row], row, text, va="center", fontsize=9)
    panel.set_xlim(0, 1.35 * left.max())
    panel.grid(visible=False, axis="y")
    panel.set_xlabel("seconds in a new process")
    _legend_above(figure, 3)
    return figure


@house_style
def paper_methods(result: Row) -> Any:
    """How far each method ends below the best bound; crosses are runs that diverged."""
    titles = ("leukemia", "a9a_3000")
    figure = new_figure(10, 5.2)
    for panel, title in zip(figure.subplots(1, 2), titles, strict=True):
        found = result[title]
        rows = sorted(found["methods"].items(), key=lambda item: _gap(found, item[1]))
        for place, (_, row) in enumerate(rows):
            gap = min(max(_gap(found, row), 1e-2), _FARTHEST)
            fine = not row["diverged"] and gap < _FARTHEST
            panel.plot(gap, place, "o" if fine else "x", color=COLOURS[0 if fine else 1])
        panel.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=8)
        panel.set_ylim(len(rows) - 0.5, -0.5)
        panel.set(xscale="log", xlabel="nats below the best bound, at the end")
        panel.set_title(title.replace("_", ", first ") + (" rows" if "_" in title else ""))
    return figure


def _gap(found: Row, row: Row) -> float:
    return _FARTHEST if row["final"] is None else found["best_bound"] - row["final"]


@house_style
def regression(result: Row) -> Any:
    """Seconds to an optimum, and a rival's seconds to the neighbourhood of it."""
    normal = result["a9a_normal"]
    rows = {"a9a, normal prior": (normal["seconds_warm"], normal["numpyro_seconds"], None)}
    for name in ("a9a", "duke", "leukemia"):
        found = result[name]
        rows[f"{name}, relevance prior"] = (
            found["seconds"], found["dsvi_seconds"], found.get("dsvi_budget"),
        )  # fmt: skip
    figure = new_figure(7.5, 1.6 + 0.34 * len(rows))
    panel = figure.subplots()
    dots(panel, list(rows), {
        "curvi, to convergence": [ours for ours, _, _ in rows.values()],
        "NumPyro or DSVI, to within some nats": [other for _, other, _ in rows.values()],
        "never within that time": [
            limit if other is None else None for _, other, limit in rows.values()
        ],
    })  # fmt: skip
    panel.set(xscale="log", xlabel="processor seconds, compiled")
    _legend_above(figure, 3)
    return figure


@house_style
def mixed(result: Row) -> Any:
    """Accuracy and time of mixed models, beside NUTS."""
    models = result["models"]
    figure = new_figure(10, 1.4 + 0.34 * len(models))
    left, right = figure.subplots(1, 2, sharey=True)
    dots(left, list(models), {OURS: [row["worst_error_sds"] for row in models.values()]})
    left.set_xlim(0, None)
    left.set_xlabel("worst error of a mean [posterior sds]")
    dots(right, list(models), {
        OURS: [row["seconds"] for row in models.values()],
        "NUTS, 400 effective draws": [row["nuts"]["running"] for row in models.values()],
    })  # fmt: skip
    right.set(xscale="log", xlabel="processor seconds")
    _legend_above(figure, 2)
    return figure


@house_style
def posteriors(result: Row) -> Any:
    """Worst error of a mean for every method and posterior, one dot each."""
    methods = widely_measured(result)
    methods.sort(key=lambda name: np.median(_errors(result, name)[0] or [np.inf]))
    figure = new_figure(9, 1.2 + 0.36 * len(methods))
    panel = figure.subplots()
    generator = np.random.default_rng(0)  # spreads dots that would hide each other
    for place, name in enumerate(methods):
        errors, total = _errors(result, name)
        colour = COLOURS[0 if name.startswith(OURS) else 1]
        height = place + generator.uniform(-0.18, 0.18, len(errors))
        panel.plot(np.clip(errors, 1e-3, 1e3), height, "o", markersize=3.5, color=colour, alpha=0.7)
        if errors:
            panel.plot(np.median(errors), place, "|", markersize=16, color="#222222")
        panel.text(1.4e3, place, f"{len(errors)} of {total}", va="center", fontsize=8, color=QUIET)
    limit = (result.get("right") or result["accurate"])["mean"]
    panel.axvline(limit, color=QUIET, linestyle="--", linewidth=1)
    panel.set_yticks(range(len(methods)), methods)
    panel.set_ylim(len(methods) - 0.5, -0.5)
    panel.set_xlim(1e-3, 1e3)
    panel.grid(visible=False, axis="y")
    panel.set(xscale="log", xlabel="worst error of a mean [posterior sds]; bars are medians")
    return figure


def _errors(result: Row, name: str) -> tuple[list[float], int]:
    rows = [row[name] for row in result["rows"].values() if name in row]
    known = [r["mean_error"] for r in rows if r.get("mean_error") is not None]
    return known, len(rows)


@house_style
def vae(result: Row) -> Any:
    """Seconds to bounds of MNIST, and how far methods end below the best on smaller sets."""
    names = [name for name in ("digits", "frey", "olivetti") if name in result]
    both = bool(names) and "mnist" in result
    figure = new_figure(10, 5.4 if both else 3.2)
    parts = figure.subfigures(2, 1, height_ratios=(1, 1.3)) if both else [figure]
    if "mnist" in result:
        _race(parts[0].subplots(), result["mnist"])
    panels = parts[-1].subplots(1, len(names), squeeze=False)[0] if names else []
    for panel, name in zip(panels, names, strict=True):
        runs: dict[str, float] = {}
        for label, row in result[name]["runs"].items():
            method = label.split()[0]
            runs[method] = max(row["bound"], runs.get(method, -np.inf))
        order = sorted(runs, key=lambda method: -runs[method])
        best = runs[order[0]]
        panel.barh(order, [best - runs[method] for method in order], color=COLOURS[6])
        panel.set_ylim(len(order) - 0.5, -0.5)
        panel.grid(visible=False, axis="y")
        panel.set_xlabel("nats per image below the best")
        panel.set_title(f"{name}, best {best:.4g}")
    return figure


def _race(panel: Any, race: Row) -> None:
    """Median seconds to every bound of the comparison on MNIST."""
    targets = list(race["rivals"]["adam"])
    series: dict[str, list[float | None]] = {}
    for method in ("kfac", *race["rivals"]):
        labels = race["rivals"].get(method)
        series[method] = []
        for target in targets:
            label = labels[target] if labels else method
            found = [row[label]["to"][target] for row in race["rounds"] if label in row]
            known = sorted(value for value in found if value is not None)
            series[method].append(known[len(known) // 2] if known else None)
    known = {method: values for method, values in series.items() if any(values)}
    dots(panel, [f"{target} nats" for target in targets], known)
    panel.set_xlim(0, None)
    panel.set_xlabel("processor seconds to a bound of MNIST (median; no marker: never reached)")
    panel.legend(loc="lower right")


@house_style
def rows(result: Row) -> Any:
    """Seconds and memory against the number of rows."""
    counts = [row["rows"] for row in result["blocks"]]
    figure = new_figure(9, 3.2)
    left, right = figure.subplots(1, 2)
    left.loglog(counts, [row["seconds"] for row in result["blocks"]], "o-", color=COLOURS[0])
    left.set(xlabel="rows", ylabel="seconds")
    peaks = [row["peak_bytes"] / 2**20 for row in result["blocks"]]
    right.semilogx(counts, peaks, "s-", color=COLOURS[1])
    right.set(xlabel="rows", ylabel="peak memory [MiB]")
    right.set_ylim(0, None)
    return figure


@house_style
def sequences(result: Row) -> Any:
    """Processor seconds beside NUTS."""
    names = [f"{row['likelihood']}, {row['length']:,} steps" for row in result["nuts"]]
    figure = new_figure(7.5, 1.4 + 0.34 * len(names))
    panel = figure.subplots()
    dots(panel, names, {
        OURS: [row["seconds"] for row in result["nuts"]],
        "NUTS": [row["nuts_seconds"] for row in result["nuts"]],
    })  # fmt: skip
    panel.set(xscale="log", xlabel="processor seconds")
    _legend_above(figure, 2)
    return figure


@house_style
def policies(result: Row) -> Any:
    """The least cost so far of pendulum policies against time."""
    figure = new_figure(7.5, 3.4)
    panel = figure.subplots()
    names = list(dict.fromkeys(row["method"] for row in result["pendulum"]))
    for row in result["pendulum"]:
        number = names.index(row["method"])
        panel.plot(
            row["seconds"], row["least"], color=COLOURS[number], linestyle=LINES[number],
            label=row["method"] if row["seed"] == 0 else None,
        )  # fmt: skip
    panel.set(xlabel="seconds, without compilation", ylabel="least cost per step so far")
    _legend_above(figure, len(names))
    return figure


@house_style
def music_methods(result: Row) -> Any:
    """Validation bounds of both methods against processor time."""
    figure = new_figure(7.5, 3.4)
    panel = figure.subplots()
    names = {"adam": "Adam", "kfac": "KFAC"}
    for row in result["runs"]:
        for number, (key, title) in enumerate(names.items()):
            run = row[key]
            panel.plot(
                run["seconds"], run["validation"], color=COLOURS[number], linestyle=LINES[number],
                label=title if row["seed"] == 0 else None,
            )  # fmt: skip
    lowest = min(row[key]["best"] for row in result["runs"] for key in names)
    panel.set(xlabel="processor seconds", ylabel="nats per validation step")
    panel.set_ylim(lowest - 0.1, lowest + 2)
    _legend_above(figure, 2)
    return figure


FIGURES: dict[str, tuple[Callable[[Row], Any], str]] = {
    "draws": (draws, "Errors of means by kind and number of draws"),
    "products": (products, "Cost of a product against the number of parameters"),
    "trust_region": (trust_region, "Seconds of three solvers by problem"),
    "conjugate": (conjugate, "A conjugate posterior by three libraries"),
    "cold_start": (cold_start, "Where the seconds of a first fit go"),
    "paper_methods": (paper_methods, "How far below the best bound each method ends"),
    "regression": (regression, "Seconds of regressions and of their rivals"),
    "mixed": (mixed, "Accuracy and seconds of mixed models beside NUTS"),
    "posteriors": (posteriors, "Worst error of a mean by method, one dot for each posterior"),
    "vae": (vae, "Bounds of auto-encoders by method"),
    "rows": (rows, "Seconds and memory against rows"),
    "sequences": (sequences, "Seconds of state-space models beside NUTS"),
    "music_methods": (music_methods, "Validation bounds of KFAC and Adam against time"),
    "policies": (policies, "The least cost per step so far, three seeds each"),
}
