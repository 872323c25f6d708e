"""The tables and figures of the paper; each experiment writes its numbers beside the paper's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from curvi._core import validation
from curvi._core.errors import InputError
from curvi.paper.experiments._provenance import provenance, write_provenance

# name -> module and its function of (out, *, seeds, quick, report), some also of seconds and steps
REGISTRY = {
    "table1": "_regression:table1",
    "logistic": "_regression:logistic",
    "coefficients": "_regression:coefficients",
    "cg_steps": "_conditions:cg_steps",
    "plateau": "_conditions:plateau",
    "lbfgs_draws": "_conditions:lbfgs_draws",
    "frey": "_vae:frey",
    "olivetti": "_vae:olivetti",
    "mnist": "_vae:mnist",
    "concentration": "_concentration:run",
}


STEPPED = ("table1", "logistic", "coefficients", "cg_steps", "plateau")
TIMED = (*STEPPED, "lbfgs_draws", "frey", "olivetti", "mnist")


def run(
    name: str,
    out: Path,
    *,
    seeds: Sequence[int],
    quick: bool,
    report: Callable[[str], None],
    seconds: float | None = None,
    steps: int | None = None,
) -> list[Path]:
    """Run one experiment and return the files it wrote.

    Parameters
    ----------
    name : str
        A key of `REGISTRY`.
    out : Path
        Folder for the files.
    seeds : sequence of int
        One run of every method per seed; medians and ranges are reported.
    quick : bool
        Short runs on fewer rows.
    report : callable
        Receives a line about what is being done.
    seconds : float, optional
        Of every run of a stochastic method or an auto-encoder, instead of the usual number.
    steps : int, optional
        Of every run of a stochastic method of a regression, however long they take.

    Returns
    -------
    list of Path

    Raises
    ------
    InputError
        If the experiment has no runs that a number of seconds, or of steps, could end.
    """
    options: dict[str, Any] = {}
    if steps is not None:
        if name not in STEPPED:
            raise InputError(
                f"{name} has no number of steps; leave --steps out, or choose {', '.join(STEPPED)}"
            )
        options["steps"] = validation.positive_integer(steps, "--steps")
    if seconds is not None:
        if name not in TIMED:
            raise InputError(
                f"{name} has no timed runs; leave --seconds out, or choose {', '.join(TIMED)}"
            )
        options["seconds"] = validation.positive_number(seconds, "--seconds")
    module, _, function = REGISTRY[name].partition(":")
    experiment: Any = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    written: list[Path] = experiment(out, seeds=seeds, quick=quick, report=report, **options)
    settings = {"seeds": list(seeds), "seconds": seconds, "steps": steps, "quick": quick}
    record = {**provenance(), "experiment": name, **settings}
    record_path = written[0].parent / f"{name}.provenance.json"
    return [*written, write_provenance(record_path, record)]
