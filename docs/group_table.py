"""Posteriors with very many groups, as the page of benchmarks shows them."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def groups_headline(result: Row) -> str:
    """The slope, and the share of NUTS's time."""
    found = list(result.get("nuts", {}).values())
    shares = "; ".join(
        f"a fit of {row['dimension']:,} coordinates takes {row['of_nuts']:.2f} of the time of NUTS "
        "on effects that are not centred"
        for row in found
    )
    slope = result["steps"]["slope"]
    return (
        f"The time of a step grows like the number of groups to the power {slope:.2f}"
        + (f"; {shares}" if shares else "")
        + "."
    )


def groups_table(result: Row) -> str:
    """Steps, whole fits, and NUTS."""
    seconds = result["steps"]["seconds"]
    lines = ["| groups | seconds of a step |", "|---|---|"]
    lines += [f"| {int(g):,} | {seconds[g]:.3g} |" for g in sorted(seconds, key=int)]
    rows = {**result.get("fits", {}), **result.get("nuts", {})}
    if not rows:
        return "\n".join(lines)
    lines += [
        "",
        "| groups | coordinates | fit [s] | NUTS, not centred / as written [s] "
        "| worst error of a mean [sd] | sd ratios |",
        "|---|---|---|---|---|---|",
    ]
    for groups in sorted(rows, key=int):
        row = rows[groups]
        shown = f"| {int(groups):,} | {row['dimension']:,} | {row['seconds']:.1f} "
        if "of_nuts" in row:
            low, high = row["sds"]
            noise = row["nuts_ess"] ** -0.5
            written = row["nuts_as_written"]["seconds"]
            shown += f"| {row['nuts_seconds']:.0f} / {written:.0f} "
            shown += f"| {row['worst_mean']:.2f} (NUTS {noise:.2f}) "
            shown += f"| {low:.2f} to {high:.2f} |"
        else:
            shown += "| not run | | |"
        lines.append(shown)
    flagged = [f"{int(g):,}" for g in sorted(rows, key=int) if rows[g]["flagged"]]
    lines += ["", f"Flagged: {', '.join(flagged) + ' groups' if flagged else 'none'}."]
    return "\n".join(lines)
