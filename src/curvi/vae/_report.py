"""The report of an auto-encoder: reconstructions, samples, manifold, history."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from curvi._core.errors import InputError, Outcome
from curvi.plots import plot_images, plot_sheet, png_bytes
from curvi.report import (
    Chart,
    Facts,
    Layer,
    Page,
    Pictures,
    Prose,
    Tile,
    Verdict,
    few_classes,
    given,
    percent,
    plain,
    write_report,
)
from curvi.vae import _use as use


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
        return write_report(AutoEncoderPage(self, X, y, image_shape).report(title), path)


@dataclass
class TrainedPage(Page):
    """What a page says about any model that was trained in epochs."""

    unit: ClassVar[str] = "row"
    rows: ClassVar[str] = "rows"
    resume: ClassVar[str] = "fit(X, warm_start=True)"
    look: ClassVar[str] = (
        "Look at reconstructions and samples: the bound says how well pixels are predicted, not "
        "whether pictures please the eye."
    )

    def verdict(self) -> Verdict:
        """How the training ended, and what to do."""
        outcome, said = self.model.outcome_, (self.model.outcome_.sentence,)
        if outcome.is_failure:
            return Verdict("bad", "Do not use this model: the training failed.", said)
        if outcome is Outcome.CONVERGED or not still_rising(self.model.history_):
            return Verdict("good", "The training has arrived.", said, (self.look,))
        headline = "The model can be used; longer training would improve it."
        advice = (
            "The bound was still rising at the end: raise max_epochs or time_budget, or go on with "
            f"{self.resume}."
        )
        return Verdict("caution", headline, said, (advice,))

    def tiles(self) -> list[Tile]:
        """The bound, the epochs, the time."""
        model, history = self.model, self.model.history_
        held_out = "held-out" if np.isfinite(history["validation_elbo"]).any() else "training"
        note = f"nats, on {held_out} {self.rows} of the fit"
        return [
            Tile(f"ELBO per {self.unit}", plain(model.elbo_, 4), note),
            Tile("Epochs", plain(float(history["epoch"][-1]), 3), f"{model.n_iter_} steps"),
            Tile("Time", f"{plain(model.result_.seconds, 2)} s", "compilation included"),
        ]

    def history(self) -> tuple[Any, ...]:
        """The bound against epochs."""
        return (history_chart(self.model.history_, self.unit, self.rows),)


@dataclass
class AutoEncoderPage(TrainedPage):
    """What a page says about a trained auto-encoder."""

    parts: ClassVar = {
        "history": "Training", "reconstructions": "Reconstructions", "samples": "Samples",
        "manifold": "Manifold", "classes": "Classes", "facts": "Model",
    }  # fmt: skip
    X: Any = None
    y: Any = None
    image_shape: tuple[int, int] | None = None
    most_rows: int = 2000
    num_samples: int = 30
    manifold_size: int = 15  # cells of a side

    def __post_init__(self) -> None:
        """Prepare rows, and what of them can be shown."""
        model = self.model
        self.table = None if self.X is None else model._rows(self.X, gaps=True)[: self.most_rows]
        self.free = not getattr(model, "n_conditions_", 0) and hasattr(model, "reconstruct")
        self.picture = _picture(model, self.image_shape) if self.free else None
        self.labels = getattr(model, "classes_", None)

    def heading(self) -> tuple[str, str]:
        """What was trained."""
        model = self.model
        what = f"Auto-encoder of {model.n_features_in_} columns into {model.latent} codes"
        return type(model).__name__, what

    @cached_property
    def rebuilt(self) -> tuple[tuple[Any, ...], tuple[Tile, ...]]:
        """Reconstructions, and the tile of their error."""
        if not self.free or self.table is None:
            return (), ()
        blocks, tile = _reconstructions(self.model, self.table, self.picture)
        return blocks, (tile,)

    def tiles(self) -> list[Tile]:
        """Those of every training, and the error of reconstructions."""
        first, *others = super().tiles()
        return [first, *self.rebuilt[1], *others]

    def reconstructions(self) -> tuple[Any, ...]:
        """Rows beside what is left of them behind the codes."""
        return self.rebuilt[0]

    def samples(self) -> tuple[Any, ...]:
        """Images decoded from the prior."""
        if self.picture is None:
            return ()
        count = self.num_samples
        # Of classes all are drawn, in turn.
        given = () if self.labels is None else (np.resize(self.labels, count),)
        images = np.asarray(self.model.sample(count, *given, seed=0)).reshape(3, count // 3, -1)
        text = f"{count} images decoded from codes that were drawn from the prior"
        return (Pictures("Samples", ((text, png_bytes(plot_sheet(images, self.picture))),)),)

    def manifold(self) -> tuple[Any, ...]:
        """The plane of two codes."""
        if self.picture is None or self.model.latent != 2 or self.labels is not None:
            return ()
        side = self.manifold_size
        sheet = np.asarray(self.model.manifold(side)).reshape(side, side, -1)
        text = "The code plane: every cell has the same prior probability"
        return (Pictures("Manifold", ((text, png_bytes(plot_sheet(sheet, self.picture))),)),)

    def classes(self) -> tuple[Any, ...]:
        """Predicted classes of a semi-supervised model."""
        if self.table is None or not hasattr(self.model, "predict_proba"):
            return ()
        chance = np.asarray(self.model.predict_proba(self.table), float)
        few = few_classes([str(c) for c in self.model.classes_], chance)
        if self.y is None:
            return (few,)
        found = self.model.classes_[chance.argmax(axis=1)]
        right = float(np.mean(found == np.asarray(self.y)[: len(found)]))
        return (
            Prose(f"{percent(right)} of {len(found)} rows are classified right."),
            few,
        )

    def facts(self) -> tuple[Any, ...]:
        """The networks and the likelihood."""
        model = self.model
        facts = {
            "codes": str(model.latent),
            "hidden layers": ", ".join(map(str, model.hidden)),
            "activation": model.activation,
            "likelihood": model.likelihood,
            "prior of the codes": "standard normal",
            "outcome": model.message_,
        }
        return (Facts("What was trained", facts),)

    def repeat(self) -> tuple[str, dict[str, Any]]:
        """The call of ``fit``."""
        return f"{self.model!r}.fit(X)", given(self.model)


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
    model: Any, rows: np.ndarray, shape: tuple[int, int] | None, *, most: int = 10,
    least_variance: float = 0.01,
) -> tuple[tuple[Any, ...], Tile]:  # fmt: skip
    """What is left of rows; a code is used from ``least_variance`` of its mean on."""
    rebuilt = np.asarray(model.reconstruct(rows)).reshape(rows.shape)
    error = float(np.sqrt(np.nanmean((rows - rebuilt) ** 2)))
    plain_error = float(np.sqrt(np.nanmean((rows - np.nanmean(rows, axis=0)) ** 2)))
    codes = np.asarray(model.transform(rows))
    variance = codes.var(axis=0).ravel()
    active = int(np.sum(variance > least_variance))
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
        shown = np.nan_to_num(rows[:most])
        figure = plot_images({"original": shown, "reconstruction": rebuilt[:most]}, shape)
        text = f"{len(shown)} rows, originals above their reconstructions"
        blocks.append(Pictures("Reconstructions", ((text, png_bytes(figure)),)))
    blocks.append(used)
    note = f"that of the mean image is {plain(plain_error, 3)}"
    return tuple(blocks), Tile("Reconstruction error", plain(error, 3), note)
