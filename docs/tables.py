"""Measured results as the tables of the manual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from group_table import groups_table
from markdown import as_table
from mixed_tables import mixed_table
from posterior_tables import posteriors_table
from regression_tables import paper_methods_table, regression_table, rows_table
from sequence_tables import music_methods_table, music_table, policies_table, sequences_table

Row = dict[str, Any]


def draws_table(result: Row) -> str:
    """Errors of fixed-draw optima on a1a."""
    return as_table(
        [
            {
                "draws": row["draws"],
                "M": row["num_draws"],
                "mean error [sd, rms]": row["mean_rms"],
                "sd error [relative, rms]": row["sd_rms"],
                "ELBO gap [nats]": row["elbo_gap"],
            }
            for row in result["rows"]
        ]
    )


def products_table(result: Row) -> str:
    """Cost of a Hessian-vector product."""
    rows = [
        {
            "objective": row["problem"],
            "parameters": row["parameters"],
            "gradient [ms]": row["gradient_ms"],
            "jvp of grad [gradients]": row["jvp_in_gradients"],
            "linearised once [gradients]": row["linearised_in_gradients"],
        }
        for row in result["rows"]
        if row["use"] == "cost"
    ]
    slopes = result["slopes"]
    growth = (
        "Growth of the linearised product with the number of parameters, as a log-log slope: "
        f"{slopes['mlp']['linearised']:.2f} (MLP), "
        f"{slopes['logistic']['linearised']:.2f} (logistic); "
        f"of the Theorem 1 product with the dimension: {slopes['theorem']['product']:.2f}. "
        f"Counted in floating-point operations they are {slopes['mlp']['flops']:.2f}, "
        f"{slopes['logistic']['flops']:.2f} and {slopes['theorem']['flops']:.2f}; seconds hold "
        "caches and the fixed cost of a call as well."
    )
    return as_table(rows) + "\n\n" + growth


def trust_region_table(result: Row) -> str:
    """Against SciPy on the same fixed-draw objective."""
    return as_table(
        [
            {
                "problem": row["problem"],
                "D": row["dimension"],
                "TrustRegion [s]": row["TrustRegion"]["seconds"],
                "trust-ncg [s]": row["trust-ncg"]["seconds"],
                "L-BFGS-B [s]": row["L-BFGS-B"]["seconds"],
                "steps": row["TrustRegion"]["steps"],
                "products": row["TrustRegion"]["cg_steps"],
                "nats short of the best peer": row["excess_nats"],
            }
            for row in result["rows"]
        ]
    )


def conjugate_table(result: Row) -> str:
    """A conjugate Normal at default settings."""
    return as_table(
        [
            {
                "method": method,
                "mean (true 8.0)": row["mean"],
                "sd (true 0.447)": row["sd"],
                "message": row["message"],
            }
            for method, row in result["normal"].items()
            if "mean" in row
        ]
    )


def cold_start_table(result: Row) -> str:
    """Where the time of a first fit goes."""
    return as_table(
        [
            {
                "family": family,
                "cold process [s]": result[family]["cold_total"],
                "of it compiling [s]": result[family]["compile_total"],
                "importing jax [s]": result[family]["import_jax"],
                "second fit [s]": result[family]["second_fit"],
            }
            for family in ("MeanField", "FullRank")
        ]
    )


def import_table(result: Row) -> str:
    """The price of the import."""
    beyond = result["seconds_beyond_jax"]
    return as_table(
        [{"statement": f"import {k}", "seconds beyond import jax": v} for k, v in beyond.items()]
    )


def vae_table(result: Row) -> str:
    """Auto-encoders: KFAC against tuned baselines."""
    if "mnist" not in result:
        return "\n\n".join(_vae_rest(result))
    race = result["mnist"]
    methods = {"kfac": None, **race["rivals"]}
    targets = list(race["rivals"]["adam"])
    rows = [
        {
            "method": method,
            "step [ms]": _step_time(race["rounds"], labels[targets[0]] if labels else method),
        }
        | {
            f"{target} [s]": _times(
                [row[label][ "to"][target] for row in race["rounds"]
                 if (label := labels[target] if labels else method) in row]
            )
            for target in targets
        }
        for method, labels in methods.items()
    ]  # fmt: skip
    ratios = [
        {"baseline": name}
        | {target: _ratio(race["ratios"][f"{name} {target}"]) for target in targets}
        for name in race["rivals"]
    ]
    lines = ["Median processor seconds to a test bound:", as_table(rows)]
    lines += ["Seconds of the baseline over those of KFAC, median of pairs:", as_table(ratios)]
    lines.append("Chosen on validation images (rate, batch, scale of the first weights, schedule, "
                 "parameters): " + "; ".join(f"{target}: {label}" for name in ("adam", "adagrad")
                 for target, label in race["rivals"][name].items()) + ".")  # fmt: skip
    if (longer := result.get("adagrad")) is not None:
        shown = ", ".join(
            f"{_ratio(found)} at {name.split()[1]}" for name, found in longer["ratios"].items()
        )
        lines.append(f"With {longer['seconds']:.0f} s for Adagrad, in runs of their own: {shown}.")
    return "\n\n".join(lines + _vae_rest(result))


def _vae_rest(result: Row) -> list[str]:
    """Other data, products, memory and few labels."""
    lines = []
    small = {name: result[name] for name in ("digits", "frey", "olivetti") if name in result}
    if small:
        rows = [
            {"data": name, "method": f"{method} {row.get('setting', '')}".strip(),
             "validation bound": row["bound"],
             "at [s]": row["seconds_to_best"], "test bound": row["test_bound"],
             "test squared error": row["test_squared_error"]}
            for name, found in small.items()
            for method, row in found["runs"].items()
        ]  # fmt: skip
        ratios = [
            f"{name}: " + ", ".join(f"{k} {_number(v)}" for k, v in found["ratios"].items())
            for name, found in small.items()
        ]
        lines += [as_table(rows), "Seconds of the first to its best bound over those of the second "
                  "to that bound (none: never reached): " + "; ".join(ratios) + "."]  # fmt: skip
    if "products" in result:
        lines.append(f"A Gauss-Newton product costs {result['products']['ratio']:.2f} gradients.")
    if "memory" in result:
        memory = result["memory"]
        lines.append(f"A model of {memory['parameters']:,} parameters trains within "
                     f"{memory['peak_bytes'] / 2**30:.1f} GiB.")  # fmt: skip
    if "labels" in result:
        shares = ", ".join(
            f"{name} {row['accuracy']:.4f}"
            + (f" ({row['seconds']:.0f} s)" if "seconds" in row else "")
            for name, row in result["labels"].items()
        )
        lines.append(f"MNIST with 1,000 labels, accuracy on test images: {shares}.")
    return lines


def _step_time(rounds: list[Row], label: str) -> str:
    times = sorted(1e3 * r[label]["seconds"] / r[label]["steps"] for r in rounds if label in r)
    return f"{times[len(times) // 2]:.1f}"


def _times(found: list[float | None]) -> str:
    known = sorted(value for value in found if value is not None)
    if not known:
        return "never"
    middle = f"{known[len(known) // 2]:.1f}"
    return middle if len(known) == len(found) else f"{middle} ({len(known)} of {len(found)} runs)"


def _ratio(found: Row) -> str:
    pairs = f" ({found['pairs']} pair{'s' if found['pairs'] > 1 else ''})"
    return f"{'at least ' if found['at_least'] else ''}{found['ratio']:.2f}{pairs}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


TABLES: dict[str, Callable[[Row], str]] = {
    "draws": draws_table,
    "products": products_table,
    "trust_region": trust_region_table,
    "conjugate": conjugate_table,
    "cold_start": cold_start_table,
    "import": import_table,
    "paper_methods": paper_methods_table,
    "regression": regression_table,
    "mixed": mixed_table,
    "posteriors": posteriors_table,
    "groups": groups_table,
    "vae": vae_table,
    "rows": rows_table,
    "sequences": sequences_table,
    "music": music_table,
    "music_methods": music_methods_table,
    "policies": policies_table,
}
