"""NUTS references of the mixed models: `python -m benchmarks.mixed_references [NAME ...]`.

Means and sds of every fixed effect, sd, correlation and group effect, from four chains; no draws
are kept.
"""

from __future__ import annotations

import json
import sys

from benchmarks.common import RESULTS, keep
from benchmarks.mixed_models import CASES, run_nuts

NAME = "mixed_references"


def rounded(found: dict) -> dict:
    """Six digits of every moment."""
    short = {
        kind: {name: float(f"{value:.6g}") for name, value in found[kind].items()}
        for kind in ("mean", "sd")
    }
    return {**found, **short}


def main(names: list[str]) -> None:
    """Run NUTS for some models, and keep what is known of the others."""
    path = RESULTS / f"{NAME}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known.pop("provenance", None)
    for name in names or list(CASES):
        print(f"{name} ...", flush=True)
        known[name] = rounded(run_nuts(CASES[name], draws=CASES[name].draws))
        print(f"{name}: largest error {known[name]['largest_error_sds']:.3f} sds")
        keep(NAME, known)


if __name__ == "__main__":
    main(sys.argv[1:])
