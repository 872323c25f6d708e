"""Run benchmarks and keep what they measured: `python -m benchmarks [NAME ...] [OPTION ...]`.

Options, from the first argument with a dash on, go to a benchmark that takes some; then there is
one name.
"""

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


def main(arguments: list[str]) -> int:
    """Run the named benchmarks, or all of them; 2 means that a name is unknown."""
    known = available()
    first = next((i for i, text in enumerate(arguments) if text.startswith("-")), len(arguments))
    names, options = arguments[:first], arguments[first:]
    if options and len(names) != 1:
        print("options need exactly one benchmark before them", file=sys.stderr)
        return 2
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; choose from: {', '.join(known)}", file=sys.stderr)
        return 2
    for name in names or known:
        print(f"{name} ...", flush=True)
        start = time.perf_counter()
        main_of = importlib.import_module(f"benchmarks.bench_{name}").main
        result = main_of(options) if options else main_of()
        if result is None or result.get("quick"):  # it only prints
            continue
        path = keep(name, result)
        print(f"{name}: {time.perf_counter() - start:.1f} s -> {path.relative_to(FOLDER.parent)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
