"""The tables and figures of the paper; each experiment writes its numbers beside the paper's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# name -> module and its function of (out, *, seeds, quick, report)
REGISTRY = {
    "table1": "_regression:table1",
    "logistic": "_regression:logistic",
    "coefficients": "_regression:coefficients",
    "frey": "_vae:frey",
    "olivetti": "_vae:olivetti",
    "mnist": "_vae:mnist",
    "concentration": "_concentration:run",
}


def run(
    name: str, out: Path, *, seeds: Sequence[int], quick: bool, report: Callable[[str], None]
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

    Returns
    -------
    list of Path
    """
    module, _, function = REGISTRY[name].partition(":")
    experiment: Any = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    written: list[Path] = experiment(out, seeds=seeds, quick=quick, report=report)
    return written
