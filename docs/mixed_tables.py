"""Measured results of mixed models as Markdown."""

from __future__ import annotations

from typing import Any

from markdown import as_table


def _both(pair: list[float]) -> str:
    return " / ".join(f"{seconds:.1f}" for seconds in pair)


def _point(row: dict[str, Any] | None) -> str:
    """Seconds of an R package, and its version."""
    if row is None:
        return "not run"
    return f"{row['seconds_first']:.2f} / {row['seconds']:.3f} (version {row['version']})"


def mixed_table(result: dict[str, Any]) -> str:
    """Accuracy and time per model, statsmodels beside it, and the large table."""
    rows = []
    for name, row in result["models"].items():
        ratios = f"{row['least_sd_ratio']:.2f} to {row['largest_sd_ratio']:.2f}"
        rows.append({
            "data": name,
            "quantities": row["quantities"],
            "worst error of a mean [sds]": f"{row['worst_error_sds']:.3f}",
            "sd ratios": ratios,
            "first / later call [s]": f"{row['seconds_first']:.2f} / {row['seconds']:.2f}",
            "of it compilation [s]": f"{row['compiling_first']:.2f} / {row['compiling']:.2f}",
            "NUTS, first / second call [s]": _both(row["nuts"]["seconds"]),
            "its compilation [s]": _both(row["nuts"]["compiling"]),
            "times faster, first / without compilation": (
                f"{row['times_faster_first']:.0f} / {row['times_faster']:.0f}"
            ),
        })  # fmt: skip
    points = [
        {
            "data": name,
            "whole posterior by curvi, first / later call [s]": (
                f"{row['seconds_first']:.2f} / {row['seconds']:.3f}"
            ),
            **{
                f"point estimate by {library} [s]": _point(row.get(library))
                for library in ("lme4", "glmmTMB")
            },
        }
        for name, row in result["models"].items()
    ]
    others = "; ".join(
        f"{name} {row['statsmodels']['seconds']:.1f} s, worst error "
        f"{row['statsmodels']['worst_error_sds']:.2f} sds, sd ratios "
        f"{row['statsmodels']['least_sd_ratio']:.2f} to "
        f"{row['statsmodels']['largest_sd_ratio']:.2f}"
        for name, row in result["models"].items()
        if "statsmodels" in row
    )
    near = ", ".join(
        f"{name} {mean:.4g} (sd {sd:.2g}; REML {published:g})"
        for name, (mean, sd, published) in result["sleepstudy_and_reml"].items()
    )
    large = result["crossed"]
    return "\n\n".join([
        as_table(rows),
        as_table(points),
        f"`fit_vb` of statsmodels, with its own priors: {others}.",
        f"sleepstudy beside the published REML fit: {near}.",
        "A crossed table of 1,000,000 rows with 50,000 and 5,000 levels, Gaussian: "
        f"{large['wall_seconds']:.0f} s ({large['processor_seconds']:.0f} processor seconds), "
        f"{large['peak_bytes'] / 2**30:.2f} GiB at the peak; the worst error of a hyperparameter "
        f"or slope is {max(large['errors_sds'].values()):.1f} posterior sds.",
    ])  # fmt: skip
