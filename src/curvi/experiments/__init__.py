"""One file per table or figure of the paper; each writes its numbers beside the paper's."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

# name -> module with a function run(out, *, seeds, quick, report)
REGISTRY = {
    "table1": "curvi.experiments.table1",
    "logistic": "curvi.experiments.logistic",
    "coefficients": "curvi.experiments.coefficients",
}


def run(
    name: str, out: Path, *, seeds: int, quick: bool, report: Callable[[str], None]
) -> list[Path]:
    """Run one experiment and return the files it wrote."""
    module: Any = importlib.import_module(REGISTRY[name])
    written: list[Path] = module.run(out, seeds=seeds, quick=quick, report=report)
    return written
