"""Tables of the regressions and of the paper's methods on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from markdown import as_table

Row = dict[str, Any]


def paper_methods_table(result: Row) -> str:
    """The paper's algorithms on the paper's bound."""
    parts = []
    for title in ("leukemia", "a9a_3000"):
        found = result[title]
        rows = [
            {
                "method": method,
                "bound after 3 steps": _bound(row["after_3_steps"]),
                "after 100 steps": _bound(row["after_100_steps"]),
                "at the end": _bound(row["final"]),
                "steps": row["steps"],
                "diverged seeds": row["diverged"],
            }
            for method, row in found["methods"].items()
        ]
        head = f"*{title.replace('_', ', first ')}*, best bound seen {found['best_bound']:.2f}"
        parts.append(f"{head}\n\n{as_table(rows)}")
    return "\n\n".join([*parts, result["comparison"]])


def regression_table(result: Row) -> str:
    """Regressions against their peers."""
    normal = result["a9a_normal"]
    rows = [
        {
            "problem": "a9a, normal prior",
            "ELBO [nats]": f"{normal['elbo']:.3f}",
            "curvi [s]": normal["seconds_warm"],
            "peer [s]": _seconds(
                normal["numpyro_seconds"], "NumPyro, within 15 nats", normal.get("numpyro_budget")
            ),
            "train / test errors": "-",
        }
    ]
    if found := result.get("one_hot"):
        rows.extend(_indicators(found))
    for name in ("a9a", "duke", "leukemia"):
        found = result[name]
        within = 30 if name == "a9a" else 2
        low, high = min(found["elbo"]), max(found["elbo"])
        train, test = sorted(found["train_errors"]), sorted(found["test_errors"])
        peer = f"DSVI, within {within} nats"
        rows.append(
            {
                "problem": f"{name}, relevance prior, {len(found['elbo'])} seeds",
                "ELBO [nats]": f"{low:.2f} to {high:.2f}",
                "curvi [s]": f"{found['seconds']:.3g}{_to_goal(found)}",
                "peer [s]": _seconds(found["dsvi_seconds"], peer, found.get("dsvi_budget")),
                "train / test errors": f"{train[0]} to {train[-1]} / {test[0]} to {test[-1]}",
            }
        )
    steps = [
        f"{name}, {row.get('setting') or row['parameterisation']}: {row['steps']}"
        for name, table in result["hfsgvi_iterations"].items()
        for row in table
    ]
    title = "Steps until HFSGVI stays within 2 nats of where it ends, by seed (None: diverged): "
    return as_table(rows) + "\n\n" + title + "; ".join(steps) + "."


def _indicators(found: Row) -> Iterator[Row]:
    """A row for each form of the rival: as one writes it, and on our products."""
    ours = found["cpu_seconds"]
    for name, rival in found["scipy"].items():
        peer = f"SciPy's L-BFGS, {name}, within 0.1 nats"
        yield {
            "problem": "indicators, 50,000 x 300, normal prior",
            "ELBO [nats]": f"{found['elbo']:.3f}",
            "curvi [s]": ours.get(name, max(ours.values())),
            "peer [s]": _seconds(rival["seconds"], peer, rival["until_it_stops"]),
            "train / test errors": "-",
        }


def _seconds(value: float | None, peer: str, budget: float | None) -> str:
    if value is not None:
        return f"{value:.3g} ({peer})"
    return f"more than {budget:.3g} ({peer})" if budget else f"never ({peer})"


def _to_goal(found: Row) -> str:
    """Our own seconds to what the peer is asked for."""
    value = found.get("seconds_to_goal")
    return "" if value is None else f" ({value:.3g} to within the same nats)"


def _bound(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"


def rows_table(result: Row) -> str:
    """Rows in blocks, and a wide sparse table."""
    rows = [
        {
            "rows": f"{row['rows']:,}",
            "seconds": row["seconds"],
            "peak memory [MiB]": round(row["peak_bytes"] / 2**20),
            "converged": row["converged"],
        }
        for row in result["blocks"]
    ]
    thin = result["sparse"]
    return (
        f"{as_table(rows)}\n\nThe cost grows like the rows to the power {result['slope']:.2f}, the "
        f"peak of memory by a factor of {result['memory_growth']:.2f}. A sparse table of 20,000 x "
        f"50,000 with 0.1 % non-zeros takes {thin['seconds']:.0f} s and "
        f"{thin['peak_bytes'] / 2**20:.0f} MiB (converged: {thin['converged']})."
    )
