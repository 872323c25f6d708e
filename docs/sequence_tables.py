"""Series, music and policies as tables of the manual."""

from __future__ import annotations

from typing import Any

from markdown import as_table

Row = dict[str, Any]
_SETS = {
    "jsb": ("JSB chorales", 6.926, 7.03),
    "nottingham": ("Nottingham", 2.964, 3.33),
    "piano_midi": ("Piano-midi", 7.980, 8.58),
    "musedata": ("MuseData", 6.989, 7.14),
}  # name, and the published bounds of a deep Markov model with and without a search


def sequences_table(result: Row) -> str:
    """State-space models against NUTS, and the slope of time in the length."""
    rows = [
        {
            "likelihood": row["likelihood"],
            "steps": f"{row['length']:,}",
            "worst state [sd]": f"{row['state_error']:.3f}",
            "median state [sd]": f"{row['state_error_median']:.3f}",
            "sd ratios": "{:.2f} to {:.2f}".format(*row["sd_ratio"]),
            "innovation sd [sd]": f"{row['level_error']:.3f}",
            "curvi, first / second call [s]": (
                f"{row['seconds_first']:.2f} / {row['seconds']:.2f}"
            ),
            "NUTS / of it compilation [s]": (
                f"{row['nuts_seconds']:.1f} / {row['nuts_compiling']:.1f}"
            ),
            "ratio, first calls / without compilation": (
                f"{row['speedup_first']:.0f} / {row['speedup']:.0f}"
            ),
        }
        for row in result["nuts"]
    ]
    found = result["slope"]
    longest = max(found["seconds"], key=int)
    noise = max(row["nuts_smallest_ess"] ** -0.5 for row in result["nuts"])
    return (
        f"{as_table(rows)}\n\n"
        "Errors are differences of means in units of the posterior sd; with the effective draws "
        f"that the chains of NUTS have, its own is up to {noise:.3f}. NUTS is given the time of "
        "400 effective draws of its worst quantity, warm-up included, as for the reference "
        "posteriors. From 1,000 to "
        f"{int(longest):,} steps the time of one round grows like the length to the power "
        f"{found['slope']:.2f}; at the end it is {1000 * found['seconds'][longest]:.0f} ms."
        + _chain(result.get("chain"))
    )


def _chain(found: Row | None) -> str:
    """How the time of the family grows with its length."""
    if found is None:
        return ""
    longest = max(found["seconds"], key=int)
    return (
        f" The bound of a `Chain` and its gradient take {1000 * found['seconds'][longest]:.1f} ms "
        f"at {int(longest):,} steps; their time grows like the length to the power "
        f"{found['slope']:.2f} from 100 steps on, and {found['slope_from_1000']:.2f} from 1,000 on."
    )


def policies_table(result: Row) -> str:
    """Costs of pendulum policies on noise that they have not seen."""
    table = []
    for name in dict.fromkeys(row["method"] for row in result["pendulum"]):
        rows = [row for row in result["pendulum"] if row["method"] == name]
        costs = ", ".join(f"{row['cost']:.3f}" for row in rows)
        steps = ", ".join(str(row["steps"]) for row in rows)
        table.append({"method": name, "cost per step, each seed": costs, "steps": steps})
    when = f"after {result['budget']:.0f} s of the clock, compilation apart"
    return f"{as_table(table)}\n\nCosts on fresh noise {when}."


def music_methods_table(result: Row) -> str:
    """KFAC and Adam on the same deep Markov model."""
    table = []
    for row in result["runs"]:
        adam, ours = row["adam"], row["kfac"]
        first, second = ("never" if s is None else f"{s:.0f}" for s in row["seconds"])
        table.append(
            {
                "seed": row["seed"],
                "Adam, validation": f"{adam['best']:.3f}",
                "KFAC, validation": f"{ours['best']:.3f}",
                "Adam, test": f"{adam['test']:.3f}",
                "KFAC, test": f"{ours['test']:.3f}",
                "Adam there after [s]": first,
                "KFAC there after [s]": second,
                "ratio": "none" if row["ratio"] is None else f"{row['ratio']:.2f}",
            }
        )
    return (
        f"{as_table(table)}\n\n"
        f"Chorales, {result['latent']} latent and {result['hidden']} hidden units, no dropout, "
        f"{result['budget']:.0f} processor seconds each without compilation and evaluations; "
        f"learning rate {result['adam']:g} of Adam and step size {result['kfac']:g} of KFAC were "
        "chosen on the validation pieces. There: within 0.01 nats of Adam's best validation bound."
    )


def music_table(result: Row) -> str:
    """Deep Markov models of music beside trivial models and published bounds."""
    rows = [
        {
            "pieces": title,
            "independent notes": f"{row['trivial']['independent']:.2f}",
            "a chain per note": f"{row['trivial']['chain']:.2f}",
            "curvi, validation": f"{row['validation']:.3f}",
            "curvi, test": f"{row['test']:.3f}",
            "mean of pieces": f"{row['test_per_sequence']:.3f}",
            "published, searched": f"{searched:.3f}",
            "published": f"{plain:.2f}",
            "processor time [s]": f"{row['processor_seconds']:.0f}",
        }
        for name, (title, searched, plain) in _SETS.items()
        if (row := result["sets"].get(name)) is not None
    ]
    return (
        f"{as_table(rows)}\n\n"
        "Negative bounds in nats per step, over all steps of all test pieces divided by their "
        "number; the mean of the bounds of single pieces is the other convention. Published: a "
        "deep Markov model with a search over its hyperparameters, and without."
        + _unfinished(result)
    )


def _unfinished(result: Row) -> str:
    """Which sets were still getting better when their time was up."""
    titles = [
        f"{title} ({result['sets'][name]['epochs']:.0f} epochs)"
        for name, (title, *_) in _SETS.items()
        if name in result["sets"]
        and result["sets"][name]["best_epoch"] == result["sets"][name]["epochs"]
    ]
    if not titles:
        return ""
    return f" The validation bound was still rising when time was up: {', '.join(titles)}."
