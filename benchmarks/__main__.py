"""Run benchmarks and keep what they measured: `python -m benchmarks [NAME ...]`."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

from benchmarks.common import keep

FOLDER = Path(__file__).parent


def available() -> list[str]:
    """The names of all benchmarks, in alphabetical order."""
    return sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all of them; 2 means that a name is unknown."""
    known = available()
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; choose from: {', '.join(known)}", file=sys.stderr)
        return 2
    for name in names or known:
        print(f"{name} ...", flush=True)
        start = time.perf_counter()
        result = importlib.import_module(f"benchmarks.bench_{name}").main()
        path = keep(name, result)
        print(f"{name}: {time.perf_counter() - start:.1f} s -> {path.relative_to(FOLDER.parent)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
