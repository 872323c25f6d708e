"""The report of a deep Markov model: training, samples beside sequences, what each step costs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from curvi.plots import plot_rolls, png_bytes
from curvi.report import Chart, Facts, Layer, Pictures, Prose, Tile, plain, write_report
from curvi.vae._report import TrainedPage


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
        return write_report(MarkovPage(self, sequences, lengths).report(title), path)


@dataclass
class MarkovPage(TrainedPage):
    """What a page says about a trained deep Markov model."""

    parts: ClassVar = {
        "history": "Training", "samples": "Samples", "sequences": "Sequences", "facts": "Model"
    }  # fmt: skip
    unit = "step"
    rows = "sequences"
    resume = "fit(sequences, start=model.params_)"
    look = (
        "Compare the bound with that of a model without memory, and look at samples beside "
        "sequences."
    )
    given: Any = None
    lengths: Any = None
    longest: int = 120  # steps that are drawn

    def __post_init__(self) -> None:
        """Read the sequences."""
        if self.given is not None:
            self.given = self.model._sequences(self.given, self.lengths, self.model.width_)

    def heading(self) -> tuple[str, str]:
        """What was trained."""
        model = self.model
        what = f"Sequences of {model.width_} coordinates behind {model.latent} latent ones"
        return "A deep Markov model", what

    def tiles(self) -> list[Tile]:
        """Those of every training, and the bound of the sequences."""
        first, *others = super().tiles()
        if self.given is None:
            return [first, *others]
        bound = plain(self.model.bound(self.given), 4)
        note = "nats per step, over all steps"
        return [first, Tile("ELBO of these sequences", bound, note), *others]

    def samples(self) -> tuple[Any, ...]:
        """Sequences that the model makes up."""
        lengths = () if self.given is None else map(len, self.given)
        return _samples(self.model, self.given, max(2, min([self.longest, *lengths])))

    def sequences(self) -> tuple[Any, ...]:
        """The bound of each sequence."""
        return () if self.given is None else _sequences(self.model, self.given)

    def facts(self) -> tuple[Any, ...]:
        """The networks and the likelihood."""
        return (_facts(self.model),)

    def repeat(self) -> tuple[str, dict[str, Any]]:
        """The call of ``fit``."""
        return f"{self.model!r}.fit(sequences)", self.model.get_params()


def _samples(model: Any, found: Any, length: int, *, count: int = 4) -> tuple[Any, ...]:
    drawn = list(model.sample(count, length, seed=0))
    pictures = [(f"{count} sequences drawn from the model",
                 png_bytes(plot_rolls(drawn, ["a sample"] * count)))]  # fmt: skip
    if found is not None:
        some = [s[:length] for s in found[:count]]
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
