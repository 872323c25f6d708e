"""The report of an auto-encoder: reconstructions, samples, manifold, history."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from curvi._core.errors import InputError, Outcome
from curvi.plots import plot_images, plot_sheet, png_bytes
from curvi.report import (
    Chart,
    Facts,
    Grid,
    Layer,
    Pictures,
    Prose,
    Report,
    Tab,
    Tile,
    Verdict,
    write_report,
)
from curvi.report._common import checked_title, repeat_tab
from curvi.report._numbers import percent, plain
from curvi.vae import _use as use

_SHOWN = 10
_SAMPLES = 30
_GRID = 15
_ACTIVE = 0.01  # variance of the mean code from which a coordinate is used
_MOST_ROWS = 2000


class Reported:
    """The method of a trained auto-encoder that writes its report."""

    def report(
        self: Any,
        path: str | os.PathLike[str],
        X: Any = None,
        y: Any = None,
        *,
        title: str | None = None,
        image_shape: tuple[int, int] | None = None,
    ) -> Path:
        """Write a page for a browser that stands alone, and its numbers as JSON beside it.

        The verdict in plain words, the history of the training, samples, the manifold of two
        codes, and with rows their reconstructions and which codes are used.

        Parameters
        ----------
        path : path
            The page, as in ``report.html``; an earlier report of that name is replaced.
        X : array, optional
            Rows to reconstruct; held-out ones say more.
        y : array, optional
            Their classes, to compare the predictions of a semi-supervised model with.
        title : str, optional
            Title of the page.
        image_shape : pair of int, optional
            Height and width of an image, where rows are neither images nor square.

        Returns
        -------
        Path
            The page.

        Raises
        ------
        InputError
            If y comes without X, or the file is there and is no report.
        """
        check_is_fitted(self)
        if y is not None and X is None:
            raise InputError("y needs the rows X whose classes they are")
        page = report_of(self, X, y, title=title, image_shape=image_shape)
        return write_report(page, path)


def report_of(
    model: Any, X: Any, y: Any, *, title: str | None, image_shape: tuple[int, int] | None
) -> Report:
    """What a page says about a trained auto-encoder."""
    rows = None if X is None else model._rows(X, gaps=True)[:_MOST_ROWS]
    shape = _picture(model, image_shape)
    tabs = [Tab("history", "Training", (history_chart(model.history_),))]
    held_out = "held-out" if np.isfinite(model.history_["validation_elbo"]).any() else "the"
    tiles = [
        Tile("ELBO per row", plain(model.elbo_, 4), f"nats, on {held_out} rows of the fit"),
        Tile("Epochs", plain(float(model.history_["epoch"][-1]), 3), f"{model.n_iter_} steps"),
        Tile("Time", f"{plain(model.result_.seconds, 2)} s", "compilation included"),
    ]
    free = not getattr(model, "n_conditions_", 0) and hasattr(model, "reconstruct")
    if free and rows is not None:
        blocks, tile = _reconstructions(model, rows, shape)
        tabs.append(Tab("reconstructions", "Reconstructions", blocks))
        tiles.insert(1, tile)
    if free:
        tabs += _generated(model, shape)
    if rows is not None and hasattr(model, "predict_proba"):
        tabs.append(Tab("classes", "Classes", _classes(model, rows, y)))
    tabs += [
        Tab("model", "Model", (_model(model),)),
        repeat_tab(f"{model!r}.fit(X)", {k: v for k, v in model.get_params().items()
                                         if v is not None}),
    ]  # fmt: skip
    return Report(
        title=checked_title(title, type(model).__name__),
        subtitle=f"Auto-encoder of {model.n_features_in_} columns into {model.latent} codes",
        verdict=verdict_of(model),
        tiles=tuple(tiles),
        tabs=tuple(tabs),
    )


def verdict_of(model: Any) -> Verdict:
    """How the training ended, and what to do."""
    if model.outcome_.is_failure:
        return Verdict("bad", "Do not use these networks: the training failed.", (model.message_,))
    rising = still_rising(model.history_)
    if model.outcome_ is Outcome.CONVERGED or not rising:
        advice = ("Look at reconstructions and samples: the bound says how well pixels are "
                  "predicted, not whether pictures please the eye.",)  # fmt: skip
        return Verdict("good", "The training has arrived.", (model.message_,), advice)
    headline = "The networks can be used; longer training would improve them."
    advice = ("The bound was still rising at the end: raise max_epochs or time_budget, or go on "
              "with fit(X, warm_start=True).",)  # fmt: skip
    return Verdict("caution", headline, (model.message_,), advice)


def still_rising(history: dict[str, np.ndarray]) -> bool:
    """Whether the last fifth of the evaluations has gained more than 1 % of all that was gained."""
    elbo = history["validation_elbo"]
    elbo = history["elbo"] if np.all(np.isnan(elbo)) else elbo
    known = elbo[np.isfinite(elbo)]
    if len(known) < 2:
        return True
    last = max(1, len(known) // 5)
    total = float(known.max() - known[0])
    return bool(known[-last:].max() - known[:-last].max() > 0.01 * max(total, 1e-12))


def history_chart(history: dict[str, np.ndarray], unit: str = "row", rows: str = "rows") -> Chart:
    """The bound against epochs, of training and of held-out rows, per row or another unit."""
    epoch = history["epoch"]
    layers = [Layer("line", epoch, history["elbo"], f"training {rows}", tone="second")]
    values = [history["elbo"]]
    if np.isfinite(history["validation_elbo"]).any():
        layers.append(Layer("line", epoch, history["validation_elbo"], f"held-out {rows}"))
        values.append(history["validation_elbo"])
    every = np.concatenate(values)
    every = every[np.isfinite(every)]
    low, high = (np.quantile(every, 0.15), every.max()) if len(every) else (0.0, 1.0)
    margin = 0.1 * (high - low) + 1e-6 * max(abs(high), 1.0)
    return Chart(
        title="History",
        sentence=f"The bound per {unit} rose to {plain(float(high))} nats.",
        x_label="epoch",
        y_label=f"ELBO per {unit} [nats]",
        layers=tuple(layers),
        note=f"Held-out {rows} fall behind training {rows} where the networks learn by heart.",
        y_ends=(float(low - 4 * margin), float(high + margin)),
    )


def _picture(model: Any, image_shape: tuple[int, int] | None) -> tuple[int, int] | None:
    try:
        width = np.zeros((1, model.n_features_in_))
        return image_shape or use.picture_shape(width, model.image_shape_)
    except InputError:
        return None


def _reconstructions(
    model: Any, rows: np.ndarray, shape: tuple[int, int] | None
) -> tuple[tuple[Any, ...], Tile]:
    rebuilt = np.asarray(model.reconstruct(rows)).reshape(rows.shape)
    error = float(np.sqrt(np.nanmean((rows - rebuilt) ** 2)))
    plain_error = float(np.sqrt(np.nanmean((rows - np.nanmean(rows, axis=0)) ** 2)))
    codes = np.asarray(model.transform(rows))
    variance = codes.var(axis=0).ravel()
    active = int(np.sum(variance > _ACTIVE))
    said = Prose(
        f"Root mean square error {plain(error, 3)}; {plain(plain_error, 3)} for the mean of all "
        f"rows. {active} of {len(variance)} codes are used"
        + (": the others stay at the prior." if active < len(variance) else ".")
    )
    used = Chart(
        title="Use of the codes",
        sentence=f"Variance of the mean of every code over {len(rows)} rows; {active} are used.",
        x_label="code",
        y_label="variance of its mean",
        layers=(
            Layer("bars", np.arange(1, len(variance) + 1), np.zeros(len(variance)),
                  "codes", variance, 0.8,
                  tips=tuple(f"code {i + 1}: {plain(float(v), 3)}"
                             for i, v in enumerate(variance))),
        ),
    )  # fmt: skip
    blocks: list[Any] = [said]
    if shape is not None:
        shown = np.nan_to_num(rows[:_SHOWN])
        figure = plot_images({"original": shown, "reconstruction": rebuilt[:_SHOWN]}, shape)
        text = f"{len(shown)} rows, originals above their reconstructions"
        blocks.append(Pictures("Reconstructions", ((text, png_bytes(figure)),)))
    blocks.append(used)
    note = f"that of the mean image is {plain(plain_error, 3)}"
    return tuple(blocks), Tile("Reconstruction error", plain(error, 3), note)


def _generated(model: Any, shape: tuple[int, int] | None) -> list[Tab]:
    if shape is None:
        return []
    labels = getattr(model, "classes_", None)  # of which all are drawn, in turn
    given = () if labels is None else (np.resize(labels, _SAMPLES),)
    images = np.asarray(model.sample(_SAMPLES, *given, seed=0)).reshape(3, _SAMPLES // 3, -1)
    text = f"{_SAMPLES} images decoded from codes that were drawn from the prior"
    tabs = [Tab("samples", "Samples", (
        Pictures("Samples", ((text, png_bytes(plot_sheet(images, shape))),)),
    ))]  # fmt: skip
    if model.latent == 2 and labels is None:
        sheet = np.asarray(model.manifold(_GRID)).reshape(_GRID, _GRID, -1)
        text = "The code plane: every cell has the same prior probability"
        tabs.append(Tab("manifold", "Manifold", (
            Pictures("Manifold", ((text, png_bytes(plot_sheet(sheet, shape))),)),
        )))  # fmt: skip
    return tabs


def _classes(model: Any, rows: np.ndarray, y: Any) -> tuple[Any, ...]:
    chance = np.asarray(model.predict_proba(rows), float)
    found = model.classes_[chance.argmax(axis=1)]
    blocks: list[Any] = []
    if y is not None:
        share = float(np.mean(found == np.asarray(y)[: len(found)]))
        blocks.append(Prose(f"{percent(share)} of {len(found)} rows are classified right."))
    kept = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), 8)).astype(int))
    cells = tuple((str(i + 1), str(found[i]), percent(float(chance[i].max()))) for i in kept)
    blocks.append(Grid("Predictions of a few rows", ("Row", "Predicted", "Probability"), cells,
                       numeric=frozenset({0, 2})))  # fmt: skip
    return tuple(blocks)


def _model(model: Any) -> Facts:
    return Facts(
        "What was trained",
        {
            "codes": str(model.latent),
            "hidden layers": ", ".join(map(str, model.hidden)),
            "activation": model.activation,
            "likelihood": model.likelihood,
            "prior of the codes": "standard normal",
            "outcome": model.message_,
        },
    )
