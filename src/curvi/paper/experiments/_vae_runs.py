"""Timed training runs of auto-encoders: settings, tuning on a pilot seed, runs that are kept.

Evaluations come by the clock of the processor and do not count as time, so that methods with cheap
and with dear steps are seen equally often, whatever else the machine does. A finished run is
written to a file at once: an experiment that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax

from curvi import datasets
from curvi._core.errors import NotConvergedWarning
from curvi._core.files import write_atomically
from curvi.likelihoods import pixels_for
from curvi.paper.experiments._provenance import provenance
from curvi.solvers import HFSGVI, KFAC, LBFGS, FirstOrder, HessianFree, Method
from curvi.vae import VAE, MLPObjective, Schedule, Trained, train
from curvi.vae import _use as use

PILOT_SEED = 10_000
PILOT = 1 / 2  # of the seconds of a run of the same method


@dataclass(frozen=True)
class Case:
    """A data set with the sizes of the paper."""

    name: str
    latent: int
    hidden: int
    likelihood: str
    seconds: float  # of training, for every method but the rival
    rival: float = 3.0  # times as long for Adagrad, which goes on rising when others have converged
    looks: int = 60  # evaluations of a run; a pilot run has a third of them

    def seconds_of(self, method: str, seconds: float) -> float:
        """What a run of a method takes, where those of most take so many seconds."""
        return self.rival * seconds if method == "adagrad" else seconds


CASES = {
    "frey": Case("frey", 20, 200, "gaussian", 12.0),
    "olivetti": Case("olivetti", 100, 400, "gaussian", 12.0),
    "mnist": Case("mnist", 20, 500, "bernoulli", 12.0, looks=30),  # each takes as long as steps
}


@dataclass(frozen=True)
class Model:
    """What the paper and curvi choose differently: first weights, penalty, width.

    ``init_scale`` None is 1/sqrt(inputs) with output biases at the mean image; a number is the sd
    of all weights, with zero biases.
    """

    init_scale: float | None
    decoder_l2: float
    hidden: int


PAPER = tuple(
    Model(scale, penalty, hidden)
    for hidden in (200, 500, 800)
    for scale in (0.01, 0.001)
    for penalty in (1e-3, 1e-4)
)


class Trial(NamedTuple):
    """A method with its batch size, and how it is named where it was tuned."""

    name: str
    method: Method
    batch_size: int


def _rate(candidate: Trial) -> float:
    return float(candidate.name.removeprefix("rate "))


def _adagrad(rate: float) -> Trial:
    return Trial(f"rate {rate:.2g}", FirstOrder(optax.adagrad(rate), check_updates=False), 100)


_FISHER = HFSGVI(curvature="gauss_newton")
CANDIDATES: dict[str, tuple[Trial, ...]] = {
    "adagrad": tuple(map(_adagrad, (0.001, 0.003, 0.01, 0.03, 0.1))),
    "lbfgs": (
        Trial("10 pairs, batch 100", LBFGS(history=10), 100),
        Trial("15 pairs, batch 100", LBFGS(history=15), 100),
        Trial("10 pairs, batch 500", LBFGS(history=10), 500),
    ),
    "hessian_free": (
        Trial("batch 200", HessianFree(), HessianFree().usual_batch_size),
        Trial("batch 500", HessianFree(), 500),
        Trial("batch 1000", HessianFree(), 1000),
    ),
    "kfac": (Trial("defaults", KFAC(), 100),),
    "hfsgvi": (
        Trial("exact Hessian, batch 500", HFSGVI(), 500),
        Trial("exact Hessian, least residual, batch 500", HFSGVI(keep="least_residual"), 500),
        Trial("exact Hessian, preconditioned, batch 500", HFSGVI(preconditioner="diagonal"), 500),
        Trial("Gauss-Newton, batch 500", _FISHER, 500),
        Trial("Gauss-Newton, batch 1000", _FISHER, 1000),
    ),
}


class Images(NamedTuple):
    """Rows to train on, to tune and to stop on, to test on; and the shape of an image."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    shape: tuple[int, int]


def images(name: str, *, rows: int | None = None, held_out: float = 0.1) -> Images:
    """Images, split at random with a fixed seed; MNIST has its own test images.

    ``held_out``: share of the images.
    """
    data = datasets.load(name)
    X, shape = data.train[0], data.image_shape or (1, data.train[0].shape[1])
    order = np.random.default_rng(0).permutation(len(X))
    held = int(held_out * len(X))
    test = X[order[:held]] if data.test is None else data.test[0]
    rest = order if data.test is not None else order[held:]
    return Images(X[rest[held:][:rows]], X[rest[:held][:rows]], test[:rows], shape)


@dataclass(frozen=True)
class Job:
    """One training run, with everything that decides its result."""

    case: Case
    model: Model
    method: str
    candidate: Trial
    seed: int
    seconds: float

    @property
    def is_pilot(self) -> bool:
        """Whether it only chooses settings: its test images are not looked at."""
        return self.seed == PILOT_SEED

    def described(self) -> dict[str, Any]:
        """The settings in words."""
        return {
            "dataset": self.case.name, "latent": self.case.latent, **vars(self.model),
            "method": self.method, "setting": self.candidate.name,
            "batch_size": self.candidate.batch_size, "seed": self.seed, "seconds": self.seconds,
        }  # fmt: skip


def trained(job: Job, data: Images) -> Trained:
    """Train for the seconds of the job, after a step that compiles."""
    case, model, candidate = job.case, job.model, job.candidate
    likelihood = pixels_for(data.train, case.likelihood, "pixel")
    objective = MLPObjective(likelihood=likelihood, decoder_l2=model.decoder_l2)
    start = VAE(
        latent=case.latent, hidden=(model.hidden,), init_scale=model.init_scale
    )._first_params(likelihood, data.train, job.seed)
    schedule = Schedule(
        batch_size=min(candidate.batch_size, len(data.train)),
        max_epochs=10**6,
        time_budget=job.seconds,
        patience=10**9,
        seed=job.seed,
        seconds_between=job.seconds / (case.looks // 3 if job.is_pilot else case.looks),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "time_budget ran out", NotConvergedWarning)
        for plan in (replace(schedule, time_budget=1e-9), schedule):
            result = train(
                objective, start, data.train, method=candidate.method, schedule=plan,
                validation=data.validation,
            )  # fmt: skip
    return result


@dataclass(frozen=True)
class Finished:
    """What is kept of a run: its history, the test images' numbers, and pictures."""

    history: dict[str, np.ndarray]
    test_bound: float
    test_squared_error: float
    pictures: dict[str, np.ndarray]
    negative_curvature: float = 0.0  # share of the steps in which CG met it

    @property
    def best(self) -> float:
        """The best validation bound."""
        values = self.history["validation_elbo"]
        finite = values[np.isfinite(values)]
        return float(finite.max()) if len(finite) else -np.inf

    @property
    def end(self) -> float:
        """Where the run ended: the mean validation bound of its last looks."""
        return _end_of(self.history["validation_elbo"])

    @property
    def last_rise(self) -> float:
        """How far the bound still rose in the last quarter of the run."""
        values = self.history["validation_elbo"]
        return self.end - _end_of(values[: len(values) - len(values) // 4])

    def seconds_to(self, bound: float) -> float | None:
        """When the validation bound was first reached; None if never."""
        values = np.nan_to_num(self.history["validation_elbo"], nan=-np.inf)
        above = np.flatnonzero(values >= bound)
        return float(self.history["seconds"][above[0]]) if len(above) else None


def _end_of(values: np.ndarray, *, end: int = 10) -> float:
    mean = float(np.mean(values[-max(len(values) // end, 1) :]))
    return mean if np.isfinite(mean) else -np.inf


Painter = Callable[[Trained], dict[str, np.ndarray]]


def finished(
    job: Job, data: Images, folder: Path, paint: Painter | None = None, *, draws: int = 10
) -> Finished:
    """The run of a job, from its file where it has finished before.

    ``draws``: draws of the code, for the bound of test images.
    """
    commit = provenance("")["commit"]
    painter = getattr(getattr(paint, "func", paint), "__name__", None)  # of a partial function
    text = json.dumps({**job.described(), "commit": commit, "painted": painter})
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.npz"
    if path.exists():
        return _read(path)
    model = trained(job, data)
    bound, error = np.nan, np.nan
    if not job.is_pilot:
        bound = float(np.mean(use.elbos(model, data.test, num_draws=draws)))
        error = float(np.mean((rebuilt_by(model, data.test) - data.test) ** 2))
    run = Finished(
        model.history, bound, error, {} if paint is None else paint(model),
        float(np.mean(model.trace.get("negative_curvature", 0.0))),
    )  # fmt: skip
    _write(path, run)
    return run


def rebuilt_by(model: Trained, X: np.ndarray) -> np.ndarray:
    """Images through the bottleneck and back."""
    return use.mean_images(model, use.code_means(model, X))


def _write(path: Path, run: Finished) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    numbers = {"test": np.asarray([run.test_bound, run.test_squared_error, run.negative_curvature])}
    histories = {f"history {name}": column for name, column in run.history.items()}
    pictures = {f"picture {name}": sheet for name, sheet in run.pictures.items()}
    np.savez(stream, **numbers, **histories, **pictures)  # type: ignore[arg-type]
    write_atomically(path, stream.getvalue())


def _read(path: Path) -> Finished:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}

    def part(head: str) -> dict[str, np.ndarray]:
        return {n.removeprefix(head): a for n, a in arrays.items() if n.startswith(head)}

    bound, error, negative = map(float, arrays["test"])
    return Finished(part("history "), bound, error, part("picture "), negative)


class Tuned(NamedTuple):
    """The candidate that is taken, and the pilot runs of all of them."""

    trial: Trial
    pilots: tuple[tuple[Trial, Finished], ...] = ()


def tuned(
    case: Case, model: Model, method: str, data: Images, folder: Path, seconds: float,
    candidates: Sequence[Trial] | None = None,
) -> Tuned:  # fmt: skip
    """The candidate that ends with the best validation bound on the pilot seed."""
    choices = list(CANDIDATES[method] if candidates is None else candidates)
    if len(choices) == 1:
        return Tuned(choices[0])

    def pilot(candidate: Trial) -> Finished:
        length = PILOT * case.seconds_of(method, seconds)
        return finished(Job(case, model, method, candidate, PILOT_SEED, length), data, folder)

    runs = [pilot(candidate) for candidate in choices]
    best = int(np.argmax([run.end for run in runs]))
    # A rate at an edge of its grid was not tuned: the grid grows until the best is inside.
    while method == "adagrad" and candidates is None and best in (0, len(choices) - 1):
        further = _adagrad(_rate(choices[best]) * (1 / 3 if best == 0 else 3))
        index = 0 if best == 0 else len(choices)
        choices.insert(index, further)
        runs.insert(index, pilot(further))
        best = int(np.argmax([run.end for run in runs]))
    return Tuned(choices[best], tuple(zip(choices, runs, strict=True)))


def papers_model(case: Case, data: Images, folder: Path, seconds: float) -> Model:
    """Of the paper's first weights, penalties and widths, those with which Adagrad does best."""
    middle = CANDIDATES["adagrad"][len(CANDIDATES["adagrad"]) // 2]
    short = PILOT * seconds / 4
    runs = [
        finished(Job(case, model, "adagrad", middle, PILOT_SEED, short), data, folder)
        for model in PAPER
    ]
    return PAPER[int(np.argmax([run.end for run in runs]))]
