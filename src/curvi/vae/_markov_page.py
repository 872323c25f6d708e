"""The report of a deep Markov model: training, samples beside sequences, what each step costs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from curvi._core.errors import Outcome
from curvi.plots import plot_rolls, png_bytes
from curvi.report import (
    Chart,
    Facts,
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
from curvi.report._numbers import plain
from curvi.vae._report import history_chart, still_rising

_DRAWN = 4  # samples, and given sequences
_LONGEST = 120  # steps that are drawn


class Reported:
    """The method of a trained model that writes its report."""

    def report(
        self: Any,
        path: str | os.PathLike[str],
        sequences: Any = None,
        *,
        lengths: Any = None,
        title: str | None = None,
    ) -> Path:
        """Write a page for a browser that stands alone, and its numbers as JSON beside it.

        The verdict in plain words, the history of the training, samples, and with sequences their
        bound beside that of a model without memory.

        Parameters
        ----------
        path : path
            The page, as in ``report.html``; an earlier report of that name is replaced.
        sequences, lengths
            As for ``fit``; held-out ones say more.
        title : str, optional
            Title of the page.

        Returns
        -------
        Path
            The page.

        Raises
        ------
        InputError
            If the model is not fitted, or the file is there and is no report.
        """
        self._fitted()
        return write_report(report_of(self, sequences, lengths, title=title), path)


def report_of(model: Any, sequences: Any, lengths: Any, *, title: str | None = None) -> Report:
    """What a page says about a trained model."""
    held_out = "held-out" if np.isfinite(model.history_["validation_elbo"]).any() else "training"
    tiles = [
        Tile("ELBO per step", plain(model.elbo_, 4), f"nats, on {held_out} sequences of the fit"),
        Tile("Epochs", plain(float(model.history_["epoch"][-1]), 3), f"{model.n_iter_} steps"),
        Tile("Time", f"{plain(model.result_.seconds, 2)} s", "compilation included"),
    ]
    found = None
    if sequences is not None:
        found = model._sequences(sequences, lengths, model.width_)
        tiles.insert(1, Tile("ELBO of these sequences", plain(model.bound(found), 4),
                             "nats per step, over all steps"))  # fmt: skip
    length = _LONGEST if found is None else max(2, min(_LONGEST, *(len(s) for s in found)))
    tabs = [Tab("history", "Training", (history_chart(model.history_, "step", "sequences"),))]
    tabs.append(Tab("samples", "Samples", _samples(model, found, length)))
    if found is not None:
        tabs.append(Tab("sequences", "Sequences", _sequences(model, found)))
    options = model.get_params()
    tabs += [Tab("model", "Model", (_facts(model),)), repeat_tab(f"{model!r}.fit(sequences)",
                                                                 options)]  # fmt: skip
    return Report(
        title=checked_title(title, "A deep Markov model"),
        subtitle=f"Sequences of {model.width_} coordinates behind {model.latent} latent ones",
        verdict=verdict_of(model),
        tiles=tuple(tiles),
        tabs=tuple(tabs),
    )


def verdict_of(model: Any) -> Verdict:
    """How the training ended, and what to do."""
    said = (model.outcome_.sentence,)
    if model.outcome_.is_failure:
        return Verdict("bad", "Do not use this model: the training failed.", said)
    if model.outcome_ is Outcome.CONVERGED or not still_rising(model.history_):
        advice = ("Compare the bound with that of a model without memory, and look at samples "
                  "beside sequences.",)  # fmt: skip
        return Verdict("good", "The training has arrived.", said, advice)
    advice = ("The bound was still rising at the end: raise max_epochs or time_budget, or go on "
              "with fit(sequences, start=model.params_).",)  # fmt: skip
    return Verdict("caution", "The model can be used; longer training would improve it.", said,
                   advice)  # fmt: skip


def _samples(model: Any, found: Any, length: int) -> tuple[Any, ...]:
    drawn = list(model.sample(_DRAWN, length, seed=0))
    pictures = [(f"{_DRAWN} sequences drawn from the model",
                 png_bytes(plot_rolls(drawn, ["a sample"] * _DRAWN)))]  # fmt: skip
    if found is not None:
        some = [s[:length] for s in found[:_DRAWN]]
        pictures.insert(0, (f"{len(some)} of the given sequences",
                            png_bytes(plot_rolls(some, ["given"] * len(some)))))  # fmt: skip
    note = "Time runs to the right. Samples are drawn from the model alone, given nothing."
    return (Pictures("Sequences and samples", tuple(pictures), note=note),)


def _sequences(model: Any, found: list[np.ndarray]) -> tuple[Any, ...]:
    nats = model.bound(found, per_sequence=True)
    steps = np.concatenate(found)
    sentence = f"Each of {len(found)} sequences has a bound between {plain(nats.min(), 3)} and "
    chart = Chart(
        title="Bound of every sequence",
        sentence=sentence + f"{plain(nats.max(), 3)} nats per step.",
        x_label="steps of the sequence",
        y_label="ELBO per step [nats]",
        layers=(Layer("points", np.asarray([len(s) for s in found], float), nats, "sequences"),),
    )
    plain_model = _without_memory(model.likelihood, steps)
    said = (
        f"The bound of these sequences is {plain(model.bound(found), 4)} nats per step. The same "
        f"distribution at every step, fitted to them, has {plain(plain_model, 4)}."
    )
    return (Prose(said), chart)


def _without_memory(likelihood: str, steps: np.ndarray) -> float:
    """Nats per step of independent coordinates with the moments of these very steps."""
    if likelihood == "bernoulli":
        share = np.clip(steps.mean(axis=0), 1e-12, 1 - 1e-12)
        return float(np.sum(share * np.log(share) + (1 - share) * np.log(1 - share)))
    variance = np.maximum(steps.var(axis=0), 1e-300)
    return -0.5 * float(np.sum(np.log(2 * np.pi * variance) + 1))


def _facts(model: Any) -> Facts:
    return Facts(
        "What was trained",
        {
            "latent coordinates": str(model.latent),
            "units of hidden layers": str(model.hidden),
            "likelihood": model.likelihood,
            "transition": "gated, between a linear map and a network",
            "recognition": "gated recurrent units, from the end of a sequence to its beginning",
            "outcome": model.outcome_.sentence,
        },
    )
