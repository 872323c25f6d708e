"""Hooks of the loop: a progress bar on a terminal, and a user's own callback for every step."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from curvi._core import validation
from curvi._core.run import within
from curvi.engine._loop import Hook, Progress


class StepInfo(NamedTuple):
    """One step, as a user's ``on_step`` sees it.

    Attributes
    ----------
    run : int
        Number of the run within the fit: other starts and more draws are runs of their own.
    step : int
        Number of the step within the run.
    seconds : float
        Time since the first step, without compilation.
    value : float
        The objective on the step's sample, before the step; for a fit, the ELBO.
    grad_norm : float
        Norm of its gradient, in the natural metric where there is one.
    gain : float
        The gain that the step's model predicts.
    accepted : bool
        Whether the parameters moved.

    Examples
    --------
    TensorBoard, and MLflow inside ``with mlflow.start_run():``, take one line each:

    >>> def to_tensorboard(writer):  # a torch.utils.tensorboard.SummaryWriter
    ...     return lambda info: writer.add_scalar(f"elbo/run{info.run}", info.value, info.step)
    >>> def to_mlflow(mlflow):
    ...     return lambda info: mlflow.log_metric(f"elbo_run{info.run}", info.value, info.step)

    ``curvi.fit(target, on_step=to_tensorboard(SummaryWriter()))`` then logs every step. Here with
    a writer that keeps what it is given:

    >>> import curvi, jax.numpy as jnp
    >>> class Writer(list):
    ...     def add_scalar(self, name, value, step):
    ...         self.append((name, step))
    >>> kept = Writer()
    >>> result = curvi.fit(lambda x: -0.5 * x**2, jnp.ones(()), family=curvi.MeanField(),
    ...                    on_step=to_tensorboard(kept), progress=False)
    >>> kept[0], len(kept) >= result.steps
    (('elbo/run0', 0), True)
    """

    run: int
    step: int
    seconds: float
    value: float
    grad_norm: float
    gain: float
    accepted: bool


class OnStep:
    """Calls a user's function for every step, after the chunk that holds it."""

    def __init__(self, call: Callable[[StepInfo], Any], sign: float = 1.0) -> None:
        self.call, self.sign = call, sign
        self.first_run, self.num_runs = 0, 0

    def next_call(self, step: int) -> None:
        """After every chunk."""

    def state(self) -> list[int]:
        """Numbers of runs, for a checkpoint."""
        return [self.first_run, self.num_runs]

    def restore(self, state: list[int], params: Any) -> None:
        """Count on from there."""
        self.first_run, self.num_runs = state

    def __call__(self, progress: Progress) -> None:
        """Report the steps of the last chunk."""
        if progress.step == max(len(rows["step"]) for rows in progress.chunks):  # others begin
            self.first_run, self.num_runs = self.first_run + self.num_runs, len(progress.chunks)
        for run, rows in enumerate(progress.chunks, start=self.first_run):
            names = ("step", "seconds", "value", "grad_norm", "gain", "accepted")
            for row in zip(*(rows[name].tolist() for name in names), strict=True):
                info = StepInfo(run, *row)
                self.call(info._replace(value=self.sign * info.value))


@contextlib.contextmanager
def hooks_for(
    progress: bool,
    quantity: str = "",
    on_step: Callable[[StepInfo], Any] | None = None,
    sign: float = 1.0,
) -> Iterator[tuple[Hook, ...]]:
    """The user's callback, and a bar with the value and the time left on a terminal.

    The bar names the phase of the run that is under way, also where no loop takes steps. Rich is
    imported only when there is a terminal to draw on: on a small fit its import would cost more
    than the fit.

    Parameters
    ----------
    progress : bool
        Whether to draw a bar, if standard error is a terminal.
    quantity : str
        Name of the value in the bar.
    on_step : callable, optional
        Called with a :class:`StepInfo` for every step.
    sign : float
        Factor of the value in both: -1 shows the ELBO where its negative is minimised.

    Yields
    ------
    tuple of Hook
        The hooks for a :class:`Budget`; the bar is removed when the context ends.
    """
    if on_step is not None:
        validation.require_callable(on_step, "on_step", "on_step(info) -> anything")
    hooks: tuple[Hook, ...] = () if on_step is None else (OnStep(on_step, sign),)
    if not (progress and sys.stderr.isatty()):
        yield hooks
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(),
        TextColumn("{task.fields[value]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        hook = _BarHook(bar, quantity, sign)
        with within(show=hook.show):
            yield (*hooks, hook)


class _BarHook:
    """Shows the phase of a run, and its last step."""

    def __init__(self, bar: Any, quantity: str, sign: float) -> None:
        self.bar, self.quantity, self.sign = bar, quantity, sign
        self.task = bar.add_task("compiling", total=None, value="", left="")

    def show(self, doing: str) -> None:
        """A phase has begun."""
        self.bar.update(self.task, description=doing)

    def next_call(self, step: int) -> None:
        """After every chunk."""

    def __call__(self, progress: Progress) -> None:
        last = [rows["value"][-1] for rows in progress.chunks if len(rows["value"])]
        value = self.sign * float(np.min(last)) if last else float("nan")
        self.bar.update(
            self.task,
            completed=progress.step,
            total=progress.max_steps,
            description="checking" if progress.ended else "fitting",
            value=f"step {progress.step} {self.quantity} {value:.6g}",
            left=_left(progress),
        )


def _left(progress: Progress) -> str:
    """Time until the last step that is allowed; a fit that converges ends before, as a rule."""
    if progress.ended or not progress.step:
        return ""
    seconds = progress.seconds / progress.step * (progress.max_steps - progress.step)
    hours, minutes = divmod(round(seconds) // 60, 60)
    return f"at most {hours}:{minutes:02d}:{round(seconds) % 60:02d} left"
