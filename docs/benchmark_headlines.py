"""What each benchmark says, in a sentence or two that follow from its recorded results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from group_table import groups_headline
from posterior_tables import widely_measured

Row = dict[str, Any]


def draws(result: Row) -> str:
    """Whitened and normalised draws against independent ones."""
    error = {(row["draws"], row["num_draws"]): row["mean_rms"] for row in result["rows"]}
    most = max(number for _, number in error)
    few = min(number for _, number in error)
    return (
        f"{few} independent draws miss the mean by {error['iid', few]:.2f} posterior sds; as many "
        f"normalised draws cost the same and miss it by {error['normalised', few]:.3f}, {most} "
        f"whitened ones by {error['whitened', most]:.4f}."
    )


def products(result: Row) -> str:
    """The price of a product."""
    costs = [r["linearised_in_gradients"] for r in result["rows"] if r["use"] == "cost"]
    return (
        f"Linearised once, a product with the exact Hessian costs {min(costs):.1f} to "
        f"{max(costs):.1f} gradients, from a thousand to a million parameters."
    )


def trust_region(result: Row) -> str:
    """How often the trust region is fastest."""
    rows = result["rows"]
    fastest = sum(row["faster"] for row in rows)
    worst = max(row["excess_nats"] for row in rows)
    return (
        f"On {fastest} of {len(rows)} problems of our choice, one start each, the trust region "
        "took less processor time than those solvers of SciPy that reach its bound; one that stops "
        f"sooner and short of it is not counted. It ends at most {max(worst, 0.0):.0e} nats short "
        "of the best."
    )


def conjugate(result: Row) -> str:
    """The error of the mean on a conjugate model."""
    ours = result["normal"]["curvi.fit"]
    others = [row["error_in_sds"] for name, row in result["normal"].items()
              if name != "curvi.fit" and "error_in_sds" in row]  # fmt: skip
    return (
        f"curvi is {ours['error_in_sds']:.3f} sds from the true mean and says that it converged. "
        f"The others, whose rates of a tutorial cannot reach it in the steps of that tutorial, are "
        f"{min(others):.0f} to {max(others):.0f} sds away and say nothing: this shows what a "
        "stopping rule is for, and ranks nobody; a larger rate reaches the answer."
    )


def cold_start(result: Row) -> str:
    """Seconds of a first and a second fit."""
    found = result["FullRank"]
    return (
        f"A first full-rank fit takes {found['cold_total']:.1f} s in a new process, imports "
        f"included, of which {found['compile_total']:.1f} s are compilation; a second one "
        f"{found['second_fit']:.2f} s."
    )


def imports(result: Row) -> str:
    """What the import adds."""
    return (
        f"`import curvi` adds {1000 * result['seconds_beyond_jax']['curvi']:.0f} ms to "
        "`import jax`."
    )


def paper_methods(result: Row) -> str:
    """How far the methods of the paper end below the best bound."""
    parts = []
    for title, name in (("leukemia", "leukemia"), ("a9a_3000", "3,000 rows of a9a")):
        found = result[title]
        ends = {
            method: found["best_bound"] - row["final"]
            for method, row in found["methods"].items()
            if row["final"] is not None and not row["diverged"]
        }
        best = min(ends, key=lambda method: ends[method])
        parts.append(f"{ends[best]:.1f} nats on {name} ({best})")
    return (
        "The bound with a relevance prior is not concave, and methods end in different places. The "
        f"highest median end among the settings run here is below the best bound seen by "
        f"{' and '.join(parts)}; crosses are settings that diverged."
    )


def regression(result: Row) -> str:
    """Seconds of the exact optimum."""
    normal, ard = result["a9a_normal"], result["a9a"]
    numpyro = normal["numpyro_seconds"]
    rival = f"after {numpyro:.1f} s" if numpyro is not None else "never, in its time,"
    keys = len(normal["numpyro"]["cosine"]["runs"])
    return (
        f"On a9a with a normal prior the exact optimum takes {normal['seconds_warm']:.2f} s; "
        f"NumPyro, with the soonest of its schedules and as the median of {keys} keys, is "
        f"{rival} within 15 nats of it. With a relevance prior full convergence takes "
        f"{ard['seconds']:.1f} s."
    )


def mixed(result: Row) -> str:
    """Accuracy and speed of mixed models."""
    models = result["models"].values()
    return (
        f"The worst error of a mean over all models is "
        f"{max(row['worst_error_sds'] for row in models):.3f} posterior sds; with the compilation "
        "of both sides taken out fits are "
        f"{min(row['times_faster'] for row in models):.0f} to "
        f"{max(row['times_faster'] for row in models):.0f} times faster than NUTS, first calls "
        f"{min(row['times_faster_first'] for row in models):.0f} to "
        f"{max(row['times_faster_first'] for row in models):.0f} times."
    )


def posteriors(result: Row) -> str:
    """Medians of the errors, best method first."""
    medians = {}
    for name in widely_measured(result):
        errors = [
            row[name]["mean_error"]
            for row in result["rows"].values()
            if row.get(name, {}).get("mean_error") is not None
        ]
        if errors:
            medians[name] = float(np.median(errors))
    order = sorted(medians, key=lambda name: medians[name])
    listed = ", ".join(f"{name} {medians[name]:.2g}" for name in order)
    return (
        "Median of the worst error of a mean, in posterior sds, each over the posteriors that it "
        f"ran on (more than half of them): {listed}."
    )


def vae(result: Row) -> str:
    """The race on MNIST."""
    if "mnist" not in result:
        return "Bounds after equal time."
    race = result["mnist"]
    parts = []
    for target in race["rivals"]["adam"]:
        found = race["ratios"][f"adam {target}"]
        at_least = "at least " if found["at_least"] else ""
        parts.append(f"{at_least}{found['ratio']:.1f} times as long to {target}")
    return (
        "KFAC with its defaults against Adam tuned for each bound: Adam takes "
        f"{', '.join(parts)} nats per image."
    )


def rows(result: Row) -> str:
    """Growth with the rows."""
    first, last = result["blocks"][0], result["blocks"][-1]
    return (
        f"From {first['rows']:,} to {last['rows']:,} rows the peak of memory grows from "
        f"{first['peak_bytes'] / 2**20:.0f} to {last['peak_bytes'] / 2**20:.0f} MiB."
    )


def sequences(result: Row) -> str:
    """Accuracy and speed of state-space models."""
    return (
        f"The worst state is {max(row['state_error'] for row in result['nuts']):.2f} posterior sds "
        f"from NUTS; second fits are {min(row['speedup'] for row in result['nuts']):.0f} to "
        f"{max(row['speedup'] for row in result['nuts']):.0f} times faster than NUTS without its "
        f"compilation, first ones {min(row['speedup_first'] for row in result['nuts']):.0f} to "
        f"{max(row['speedup_first'] for row in result['nuts']):.0f} times faster than NUTS with it."
    )


def music(result: Row) -> str:
    """Bounds of test pieces beside those of a chain per note."""
    titles = {"jsb": "chorales", "nottingham": "Nottingham tunes", "piano_midi": "piano pieces",
              "musedata": "MuseData pieces"}  # fmt: skip
    parts = [
        f"{row['test']:.2f} nats per step of {titles[name]} ({row['trivial']['chain']:.2f} for a "
        "chain per note)"
        for name, row in result["sets"].items()
    ]
    return f"Test pieces cost {', '.join(parts)}."


def music_methods(result: Row) -> str:
    """How much sooner KFAC reaches the bound of Adam."""
    ratios = [row["ratio"] for row in result["runs"]]
    if None in ratios:
        missed = sum(ratio is None for ratio in ratios)
        return f"KFAC does not reach Adam's best bound for {missed} of {len(ratios)} seeds."
    return (
        f"KFAC reaches Adam's best validation bound in {1 / max(ratios):.2f} to "
        f"{1 / min(ratios):.2f} of its time ({len(ratios)} seeds)."
    )


def policies(result: Row) -> str:
    """Which method ends lowest."""
    names = list(dict.fromkeys(row["method"] for row in result["pendulum"]))
    mean = {
        name: np.mean([row["cost"] for row in result["pendulum"] if row["method"] == name])
        for name in names
    }
    ordered = sorted(names, key=lambda name: mean[name])
    parts = [f"{mean[name]:.2f} by {name}" for name in ordered]
    return f"Mean costs per step: {', '.join(parts)}."


HEADLINES: dict[str, Callable[[Row], str]] = {
    "draws": draws,
    "products": products,
    "trust_region": trust_region,
    "conjugate": conjugate,
    "cold_start": cold_start,
    "import": imports,
    "paper_methods": paper_methods,
    "regression": regression,
    "mixed": mixed,
    "posteriors": posteriors,
    "groups": groups_headline,
    "vae": vae,
    "rows": rows,
    "sequences": sequences,
    "music": music,
    "music_methods": music_methods,
    "policies": policies,
}
