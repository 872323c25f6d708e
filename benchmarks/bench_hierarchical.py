"""curvi with nothing chosen on the hierarchical models, against the references and NUTS.

``python -m benchmarks hierarchical [--models A,B] [--contenders "curvi;..."] [--limit SECONDS]
[--quick]``: the first call of every model in a process of its own; ``--quick`` leaves the second
call out. The table is printed; nothing is kept (``posteriors`` keeps rows).
"""

from __future__ import annotations

import argparse
import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import posterior_contenders as contenders
from benchmarks import posterior_problems as problems
from benchmarks.bench_posteriors import LIMIT, chosen, run_one
from benchmarks.hierarchical import MODELS
from benchmarks.posterior_scores import is_silent, line


def main(arguments: list[str] | None = None) -> None:
    """Print a row for each model, then the figures that matter."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks hierarchical")
    parser.add_argument("--models", default="")
    parser.add_argument("--contenders", default="curvi")
    parser.add_argument("--limit", type=float, default=LIMIT)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    wanted = parser.parse_args(arguments or [])
    known = problems.references()
    ready = [name for name in MODELS if "sites" in known.get(name, {})]
    if missing := [name for name in MODELS if name not in ready]:
        print(f"  without a reference yet: {', '.join(missing)}")
    pairs = [
        (who, model)
        for who in chosen(contenders.CONTENDERS, wanted.contenders, ";")
        for model in chosen(ready, wanted.models)
    ]

    def measure(pair: tuple[str, str]) -> dict[str, Any]:
        row = run_one(*pair, wanted.limit, once=wanted.quick)
        print(line(pair[1], pair[0], row), flush=True)
        return row

    with ThreadPoolExecutor(wanted.jobs) as pool:
        rows = list(pool.map(measure, pairs))
    for who in dict.fromkeys(who for who, _ in pairs):
        figures(who, [row for row in rows if row["who"] == who])


def figures(who: str, rows: list[dict[str, Any]]) -> None:
    """How many are right, how many silent, and the time beside that of NUTS."""
    shares = [row["of_nuts"] for row in rows if row.get("of_nuts") is not None]
    print(f"  {who}: right {sum(row['right'] for row in rows)} of {len(rows)}, "
          f"silently wrong {sum(map(is_silent, rows))}", end="")  # fmt: skip
    if shares:
        print(f"; processor time of NUTS: median {statistics.median(shares):.2f}, "
              f"most {max(shares):.2f} ({len(shares)} models)", end="")  # fmt: skip
    print()
