"""Section 4.2: auto-encoders of Frey faces, Olivetti faces and MNIST.

Two columns: curvi's settings, and the paper's (small random weights, zero biases). Rates and the
like are tuned on validation images with a pilot seed. For every data set: the convergence of the
bound (CSV and PNG), how much sooner than Adagrad each method reaches the bound Adagrad ends at,
reconstructions, manifolds of two-dimensional codes, denoised and imputed images.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from curvi.paper.experiments._figures import Row, as_markdown, plot_convergence, write_files
from curvi.paper.experiments._vae_runs import (
    CANDIDATES,
    CASES,
    PILOT,
    Case,
    Finished,
    Images,
    Job,
    Model,
    Tuned,
    finished,
    images,
    papers_model,
    rebuilt_by,
    tuned,
)
from curvi.plots import plot_images, plot_sheet
from curvi.vae import Trained
from curvi.vae import _use as use

OURS, PAPERS = "curvi's settings", "the paper's settings"
METHODS = {
    OURS: ("kfac", "hessian_free", "lbfgs", "adagrad"),
    PAPERS: ("hessian_free", "hfsgvi", "lbfgs", "adagrad"),
}
MANIFOLDS = {"kfac": (10, 20), "hessian_free": (10, 20), "hfsgvi": (10,)}
_QUICK_CHOICE = {"adagrad": 2}  # the middle of its rates; of the others the first candidate
_QUICK_ROWS, _QUICK_SECONDS, _QUICK_HIDDEN = 200, 1.0, 50
_QUICK = (
    f"Quick settings: {_QUICK_ROWS} images, small networks and settings that were not tuned, which "
    "say nothing about the paper's claims."
)
_TUNED = (
    "Settings were chosen by where a run with a pilot seed ended, Adagrad's rate inside its grid. "
    "A run ends at the mean of the last tenth of its looks. The last column: seconds of "
    "Adagrad to the bound it ends at over those of the method to the same bound, in the median of "
    "the seeds, and the number of seeds that reached it in the seconds of their run."
)
_READINGS = (
    "Readings of HFSGVI on the pilot seed, with the paper's settings and K = 10. Steps at negative "
    "curvature are those in which conjugate gradients met it and stopped:"
)


@dataclass(frozen=True)
class Experiment:
    """What all runs of one data set share."""

    case: Case
    data: Images
    folder: Path
    seconds: float
    seeds: Sequence[int]
    quick: bool
    report: Callable[[str], None]

    def run(self, job: Job, paint: Any = None) -> Finished:
        """One run, reported."""
        self.report(f"{self.case.name}: {job.method}, {job.candidate.name}, seed {job.seed}")
        return finished(job, self.data, self.folder, paint)


def run(
    dataset: str,
    out: Path,
    *,
    seeds: Sequence[int],
    quick: bool,
    report: Callable[[str], None],
    seconds: float | None = None,
) -> list[Path]:
    """Write the tables and figures of one data set into a folder of its own.

    Every method trains for the same number of seconds; compilation and evaluation do not count.
    The pictures show the first seed. Finished runs are kept in ``runs`` until all are done, so
    that the command can be interrupted and given again.
    """
    case = CASES[dataset]
    if quick:  # most of the time of a short run is compilation
        case = replace(case, hidden=_QUICK_HIDDEN)
    budget = (_QUICK_SECONDS if quick else case.seconds) if seconds is None else seconds
    folder = out / dataset / "runs"
    data = images(dataset, rows=_QUICK_ROWS if quick else None)
    experiment = Experiment(case, data, folder, budget, seeds, quick, report)
    models = {OURS: Model(None, 1e-4, case.hidden)}
    models[PAPERS] = (
        Model(0.01, 1e-3, case.hidden) if quick else papers_model(case, data, folder, budget)
    )
    chosen: dict[str, dict[str, Tuned]] = {}
    runs: dict[tuple[str, str, int], Finished] = {}
    for column, model in models.items():
        chosen[column] = {}
        for method in METHODS[column]:
            only = [CANDIDATES[method][_QUICK_CHOICE.get(method, 0)]] if quick else None
            report(f"{dataset}: tuning {method}, {column}")
            choice = tuned(case, model, method, data, folder, budget, only)
            chosen[column][method] = choice
            for seed in seeds:
                length = case.seconds_of(method, budget)
                job = Job(case, model, method, choice.trial, seed, length)
                paint = partial(_painted, data, method) if seed == seeds[0] else None
                runs[column, method, seed] = experiment.run(job, paint)
    sheets = _manifolds(experiment, models, chosen)
    files = {
        "_convergence.csv": _history(runs),
        "_test.csv": _tested(runs, verdict=not quick),
        "_manifold.csv": _spreads(data, sheets),
        ".md": _summary(experiment, runs, models, chosen),
        **_figures(experiment, runs),
        **_sheets(data, sheets),
    }
    if readings := _readings(chosen[PAPERS]["hfsgvi"]):
        files["_readings.csv"] = readings
        files[".md"] += f"\n{_READINGS}\n\n{as_markdown(readings)}\n"
    named = {case.name + ending: content for ending, content in files.items()}
    written = write_files(out / dataset, named, dpi=130)
    shutil.rmtree(folder, ignore_errors=True)  # what is in it is in these files
    return written


def _painted(
    data: Images, method: str, model: Trained, *, sweeps: int = 50, most: int = 10
) -> dict[str, np.ndarray]:
    """What the figures show of a model.

    ``sweeps``: rounds of imputation.
    ``most``: images that are shown.
    """
    generator = np.random.default_rng(0)
    shown = data.test[generator.choice(len(data.test), most, replace=False)]
    sheets = {"original": shown, "rebuilt": rebuilt_by(model, shown)}
    if method != "kfac":
        return sheets
    noisy = np.clip(shown + 0.2 * generator.standard_normal(shown.shape), 0, 1)
    noisy = noisy.astype(shown.dtype)
    hidden = np.zeros(data.shape, bool)
    hidden[:, data.shape[1] // 2 :] = True
    missing = np.broadcast_to(hidden.ravel(), shown.shape)
    occluded = np.where(missing, 0.5, shown).astype(shown.dtype)
    return sheets | {
        "noisy": noisy,
        "denoised": use.denoised(model, noisy, num_draws=20),
        "right half hidden": occluded,
        "imputed": use.imputed(model, occluded, np.array(missing), num_sweeps=sweeps),
    }


def _history(runs: dict[tuple[str, str, int], Finished]) -> list[Row]:
    return [
        {"settings": column, "method": method, "seed": seed}
        | {name: float(values[index]) for name, values in run.history.items()}
        for (column, method, seed), run in runs.items()
        for index in range(len(run.history["step"]))
    ]


def _tested(runs: dict[tuple[str, str, int], Finished], *, verdict: bool) -> list[Row]:
    rows = []
    for (column, method, seed), run in runs.items():
        sooner = _times_sooner(runs, column, method, seed) if verdict else None
        rows.append({
            "settings": column, "method": method, "seed": seed, "validation_bound": run.best,
            "validation_bound_at_the_end": run.end, "rise_in_the_last_quarter": run.last_rise,
            "test_bound": run.test_bound, "test_squared_error": run.test_squared_error,
            "epochs": float(run.history["epoch"][-1]),
            "times_sooner_than_adagrad": "" if sooner is None else sooner,
        })  # fmt: skip
    return rows


def _times_sooner(
    runs: dict[tuple[str, str, int], Finished], column: str, method: str, seed: int
) -> float | None:
    """Seconds of Adagrad to where it ends over those to the same bound; None if never reached."""
    rival = runs[column, "adagrad", seed]
    needed, mine = rival.seconds_to(rival.end), runs[column, method, seed].seconds_to(rival.end)
    return None if mine is None or needed is None else needed / max(mine, 1e-9)


def _summary(
    experiment: Experiment, runs: dict[tuple[str, str, int], Finished], models: dict[str, Model],
    chosen: dict[str, dict[str, Tuned]],
) -> str:  # fmt: skip
    """Medians over seeds, one table for each column."""
    parts = []
    for column, model in models.items():
        weights = "1/sqrt(inputs)" if model.init_scale is None else f"N(0, {model.init_scale:g}^2)"
        lines = [_line(experiment, runs, column, m, chosen) for m in METHODS[column]]
        parts.append(
            f"{column[0].upper()}{column[1:]}: first weights {weights}, L2 {model.decoder_l2:g}, "
            f"{model.hidden} hidden units.\n\n{as_markdown(lines)}"
        )
    seeds = len(experiment.seeds)
    rival = experiment.case.seconds_of("adagrad", experiment.seconds)
    said = f"{experiment.seconds:g} processor seconds of training each, {rival:g} of Adagrad, "
    said += f"{seeds} seed{'s' * (seeds > 1)}, medians. "
    said += _QUICK if experiment.quick else _TUNED
    return "\n\n".join([*parts, said]) + "\n"


def _line(
    experiment: Experiment, runs: dict[tuple[str, str, int], Finished], column: str, method: str,
    chosen: dict[str, dict[str, Tuned]],
) -> Row:  # fmt: skip
    seeds = experiment.seeds
    mine = [runs[column, method, seed] for seed in seeds]
    sooner = [_times_sooner(runs, column, method, seed) for seed in seeds]
    reached = [value for value in sooner if value is not None]
    middle = statistics.median(value or 0.0 for value in sooner)  # a seed that never came is last
    median = f"{middle:.1f}" if middle else "never"
    sooner_than = {"times sooner than Adagrad": f"{median} ({len(reached)} of {len(seeds)})"}
    return {
        "method": method,
        "setting": chosen[column][method].trial.name,
        "best validation bound [nats]": f"{statistics.median(run.best for run in mine):.4g}",
        "bound at the end [nats]": f"{statistics.median(run.end for run in mine):.4g}",
        "its rise in the last quarter": f"{statistics.median(run.last_rise for run in mine):.2g}",
        "test bound [nats]": f"{statistics.median(run.test_bound for run in mine):.4g}",
        "squared error": f"{statistics.median(run.test_squared_error for run in mine):.4g}",
        "epochs": f"{statistics.median(run.history['epoch'][-1] for run in mine):.4g}",
        **({} if experiment.quick else sooner_than),
    }


def _figures(experiment: Experiment, runs: dict[tuple[str, str, int], Finished]) -> dict[str, Any]:
    """Convergence of every column, and pictures of the first seed."""
    first, shape = experiment.seeds[0], experiment.data.shape
    figures = {}
    for column, ending in ((OURS, ""), (PAPERS, "_paper")):
        histories = {
            method: [runs[column, method, seed].history for seed in experiment.seeds]
            for method in METHODS[column]
        }
        title = f"{experiment.case.name}, {column}"
        figures[f"_convergence{ending}.png"] = plot_convergence(histories, title=title)
        sheets = {m: runs[column, m, first].pictures for m in METHODS[column]}
        rows = {"original": sheets["adagrad"]["original"]}
        rows |= {method: sheet["rebuilt"] for method, sheet in sheets.items()}
        figures[f"_reconstructions{ending}.png"] = plot_images(rows, shape)
    repaired = dict(runs[OURS, "kfac", first].pictures)
    repaired.pop("rebuilt")
    return figures | {"_denoise_impute.png": plot_images(repaired, shape)}


def _readings(tuned: Tuned) -> list[Row]:
    """How every reading of HFSGVI did on the pilot seed."""
    return [
        {
            "reading": trial.name,
            "best validation bound [nats]": f"{run.best:.4g}",
            "bound at the end [nats]": f"{run.end:.4g}",
            "share of steps at negative curvature": f"{run.negative_curvature:.2f}",
        }
        for trial, run in tuned.pilots
    ]


def _manifolds(
    experiment: Experiment, models: dict[str, Model], chosen: dict[str, dict[str, Tuned]]
) -> dict[str, dict[str, np.ndarray]]:
    """What codes of a plane decode to, by method and grid; HFSGVI with the paper's settings."""
    case, sheets = replace(experiment.case, latent=2), {}
    for method, grids in MANIFOLDS.items():
        column = PAPERS if method == "hfsgvi" else OURS
        job = Job(
            case, models[column], method, chosen[column][method].trial, experiment.seeds[0],
            PILOT * experiment.seconds,
        )  # fmt: skip
        sheets[method] = experiment.run(job, partial(_planes, grids)).pictures
    return sheets


def _spreads(data: Images, sheets: dict[str, dict[str, np.ndarray]]) -> list[Row]:
    """How much the images of a plane differ: near zero they are copies of one image."""
    whole = float(np.sum(np.var(data.train, axis=0)))
    return [
        {"method": method, "share_of_the_variance_of_the_data": spread / whole}
        for method, found in sheets.items()
        for spread in [float(np.sum(np.var(found["10"], axis=0)))]
    ]


def _sheets(data: Images, sheets: dict[str, dict[str, np.ndarray]]) -> dict[str, Any]:
    """The figures of the planes."""
    figures = {}
    for method, found in sheets.items():
        for grid, decoded in found.items():
            ending = ("" if method == "kfac" else f"_{method}") + ("_10" if grid == "10" else "")
            sheet = decoded.reshape(int(grid), int(grid), -1)
            figures[f"_manifold{ending}.png"] = plot_sheet(sheet, data.shape, quantiles=True)
    return figures


def _planes(grids: Sequence[int], model: Trained) -> dict[str, np.ndarray]:
    dtype = use.dtype_of(model)
    return {str(g): use.mean_images(model, use.code_grid(g).astype(dtype)) for g in grids}


frey, olivetti, mnist = (partial(run, name) for name in CASES)
