"""One file per table or figure of the paper; each writes its numbers beside the paper's."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

# name -> module and its function of (out, *, seeds, quick, report)
REGISTRY = {
    "table1": "curvi.reproduction._table1:run",
    "logistic": "curvi.reproduction._logistic:run",
    "coefficients": "curvi.reproduction._coefficients:run",
    "frey": "curvi.reproduction._vae:frey",
    "olivetti": "curvi.reproduction._vae:olivetti",
    "mnist": "curvi.reproduction._vae:mnist",
    "bounds": "curvi.reproduction._concentration:run",
}


def run(
    name: str, out: Path, *, seeds: int, quick: bool, report: Callable[[str], None]
) -> list[Path]:
    """Run one experiment and return the files it wrote."""
    module, _, function = REGISTRY[name].partition(":")
    experiment: Any = getattr(importlib.import_module(module), function)
    written: list[Path] = experiment(out, seeds=seeds, quick=quick, report=report)
    return written
