"""The claims about logistic regression, with what follows from their records."""

from __future__ import annotations

import itertools
import json
import math
import re

from claim_records import (
    CONDITION,
    FEW,
    NEAR,
    NOT,
    RECORDED,
    RESULTS,
    SMALL,
    Claim,
    Row,
    grouped,
    middle,
    rows,
    several,
    span,
    table_rows,
    verdict,
)

ROWS = 38  # of the training part of either small data set
MANY = 100  # iterations
SPARSE = 0.1  # of the coefficients


def errors() -> Claim:
    """Table 1, by the rule of its page."""
    text = (RECORDED / "table1.md").read_text().split("either way):\n\n", 1)[1]
    lines = [line[2:] for line in text.split("\n\n", 1)[0].splitlines()]
    none = lines == ["no difference of that size"]
    return Claim(
        "regressions",
        "Misclassified rows, Table 1",
        "[Table 1](reproduction.md#table-1-misclassified-rows)",
        CONDITION if none else NOT,
        "the test rows of duke are too few to tell; elsewhere "
        + ("no median differs by more than one error and 1 %" if none else "; ".join(lines)),
    )


def settled(lines: list[Row]) -> bool:
    """Whether every run of a reading was where it stands after three steps, above its start."""
    return all(
        0 <= int(line["since_step"] or -1) <= FEW
        and float(line["stands"]) > float(line["start"])
        and float(line["largest_ratio"]) < 1
        for line in lines
    )


def readings(data: str, *, drawn: bool) -> dict[str, list[Row]]:
    """The runs of every reading of HFSGVI on a data set, with draws or without."""
    lines = [one for one in rows("plateau.csv") if one["data"] == data]
    return grouped([one for one in lines if (one["draws"] != "0") == drawn], "reading")


def within_three() -> Claim:
    """The plateau, and the reading with the highest final bound."""
    counts = []
    for data in SMALL:
        for drawn in (False, True):
            found = readings(data, drawn=drawn)
            count = sum(settled(lines) for lines in found.values())
            kind = "with draws" if drawn else "with the exact expectation"
            counts.append(f"{count} of {len(found)} readings {kind} on {data}")
    steps = [step for data in SMALL for step in steps_to_end(data, "HFSGVI")]
    lines = [one for drawn in (False, True) for data in SMALL
             for one in readings(data, drawn=drawn).values()]  # fmt: skip
    seen = (
        f"settled after {FEW} steps, at the plateau of the empty model: {several(counts)}; the "
        "reading with the highest final bound leaves the plateau, and has settled after "
        f"{span(steps, 0)} steps"
    )
    return Claim(
        "regressions",
        f"HFSGVI converges within {FEW} iterations on the small data sets",
        "[convergence](reproduction.md#convergence)",
        verdict([settled(one) for one in lines]),
        seen,
    )


def steps_to_end(data: str, method: str) -> list[float]:
    """The step from which on a run stays within two nats of where it ends, by seed."""
    found = []
    for lines in grouped(
        [one for one in rows("logistic.csv") if (one["data"], one["method"]) == (data, method)],
        "seed",
    ).values():
        goal = float(lines[-1]["bound"]) - NEAR
        bad = [place for place, line in enumerate(lines) if float(line["bound"]) < goal]
        found.append(float(lines[bad[-1] + 1 if bad else 0]["step"]))
    return found


def needed(name: str) -> tuple[int | None, list[tuple[int, float]]]:
    """The draws from which on L-BFGS-SGVI ends above DSVI, and all gaps by their draws."""
    lines = [one for one in rows("lbfgs_draws.csv") if one["data"] == name]
    found = grouped(lines, "method")
    dsvi = middle(found.pop("DSVI"))
    gaps = sorted((int(one[0]["draws"]), middle(one) - dsvi) for one in found.values())
    enough = [
        draws for place, (draws, _) in enumerate(gaps) if all(gap > 0 for _, gap in gaps[place:])
    ]
    return (enough[0] if enough else None), gaps


def sides(name: str) -> str:
    """How far L-BFGS-SGVI ends from DSVI, by its draws, in words."""
    enough, gaps = needed(name)
    more = " or more" if enough != gaps[-1][0] else ""
    head = "no number of draws that was run" if enough is None else f"{enough} draws{more}"
    said = [
        f"{abs(gap):.1f} nats {'above' if gap > 0 else 'below'} with {draws}" for draws, gap in gaps
    ]
    return f"with {head} ({', '.join(said)})"


def larger_bound() -> Claim:
    """L-BFGS-SGVI beside DSVI."""
    found = grouped(rows("table1.csv"), "data", "method")
    usual, held = [], []
    for data in (*SMALL, "a9a"):
        lines = found[data, "L-BFGS-SGVI"]
        gap = middle(lines) - middle(found[data, "DSVI"])
        draws = re.search(r"(\d+) draw", lines[0]["setting"])
        usual.append(f"{data} {'yes' if gap > 0 else 'no'} ({draws[1] if draws else '?'} draws)")
        held.append(gap > 0)
    names = list(grouped(rows("lbfgs_draws.csv"), "data"))
    held += [needed(name)[0] is not None for name in names]
    return Claim(
        "regressions",
        "L-BFGS-SGVI ends with a larger bound than DSVI",
        "[convergence](reproduction.md#draws-of-l-bfgs-sgvi)",
        verdict(held),
        f"with the settings of Table 1: {', '.join(usual)}; then, by draws, "
        f"{'; '.join(f'{name} {sides(name)}' for name in names)}",
    )


def largest_fall(data: str, method: str) -> float:
    """The largest fall of a bound between evaluations after a tenth of the steps; any seed."""
    lines = [one for one in rows("logistic.csv") if (one["data"], one["method"]) == (data, method)]
    falls = [0.0]
    for run in grouped(lines, "seed").values():
        late = [float(one["bound"]) for one in run if int(one["step"]) >= int(run[-1]["step"]) / 10]
        falls += [a - b for a, b in itertools.pairwise(late)]
    return max(falls)


def fluctuates() -> Claim:
    """DSVI at late steps."""
    methods = ("DSVI", "L-BFGS-SGVI", "HFSGVI")
    falls = {data: [largest_fall(data, method) for method in methods] for data in SMALL}
    found = json.loads((RESULTS / "paper_methods.json").read_text())["leukemia"]["methods"]
    ranges = {
        name.split()[1]: row["range_of_last_5_evaluations"]
        for name, row in found.items() if name.startswith("DSVI")
    }  # fmt: skip
    rate = max(ranges, key=float)
    shown = [
        f"{data} {', '.join(f'{fall:.1f}' for fall in three)}" for data, three in falls.items()
    ]
    return Claim(
        "regressions",
        "DSVI fluctuates strongly on small data, even at late stages",
        "[convergence](reproduction.md#convergence)",
        verdict([ranges[rate] > NEAR, *(three[0] > max(three[1:]) for three in falls.values())]),
        f"leukemia, the largest rate that was tried ({rate}): a range of {ranges[rate]:.1f} nats "
        "over the last five evaluations. With a rate chosen by a pilot run the largest falls of "
        "the bound after a tenth of the steps are, for "
        f"{', '.join(methods)}: {'; '.join(shown)} nats",
    )


def many_iterations() -> Claim:
    """HFSGVI on a9a."""
    steps = steps_to_end("a9a", "HFSGVI")
    pilots = [
        float(line["pilot bound [nats]"]) for line in table_rows("table1.md")
        if line["data"] == "a9a" and line.get("setting", "").startswith("HFSGVI")
    ]  # fmt: skip
    start = float(next(one for one in rows("logistic.csv") if one["data"] == "a9a")["bound"])
    lost = sum(bound < start for bound in pilots)
    found = json.loads((RESULTS / "paper_methods.json").read_text())["a9a_3000"]["methods"]
    small = [row["diverged"] > 0 for name, row in found.items() if name.startswith("HFSGVI")]
    return Claim(
        "regressions",
        "HFSGVI needs 1,000 iterations on a9a and is less stable",
        "[convergence](reproduction.md#convergence)",
        verdict([min(steps) > MANY, lost > 0 or any(small)]),
        f"{span(steps, 0)} steps until it stays within {NEAR:g} nats of its end; {lost} of "
        f"{len(pilots)} readings end below their start, and on 3,000 rows {sum(small)} of "
        f"{len(small)}",
    )


def sparse() -> Claim:
    """Coefficients that are not switched off."""
    lines = [one for one in table_rows("coefficients.md") if "Newton" not in one["method"]]
    large = "above a hundredth of the largest"
    shares = {
        data: [int(one[large]) / int(one["coefficients"]) for one in group]
        for data, group in grouped(lines, "data").items()
    }
    said = [
        f"{data} {span([float(one[large]) for one in group], 0)} of {group[0]['coefficients']}"
        for data, group in grouped(lines, "data").items()
    ]
    return Claim(
        "regressions",
        "The coefficients are very sparse",
        "[sparsity](reproduction.md#sparsity)",
        verdict([max(values) < SPARSE for values in shares.values()]),
        f"above a hundredth of the largest, over the three methods: {several(said)}",
    )


def ten_iterations() -> Claim:
    """K = 10 against the largest K."""
    said, held = [], []
    for data, lines in grouped(rows("cg_steps.csv"), "data").items():
        ends = {int(k): middle(group) for k, group in grouped(lines, "K").items()}
        gap = ends[10] - ends[max(ends)]
        held.append(gap > -NEAR)
        said.append(f"{data} {abs(gap):.1f} nats {'above' if gap > 0 else 'below'} K = {max(ends)}")
    return Claim(
        "regressions",
        "Ten iterations of CG are enough",
        "[iterations](reproduction.md#few-iterations-of-conjugate-gradients)",
        verdict(held),
        f"K = 10 after equally many steps: {', '.join(said)}",
    )


def plateau_said() -> str:
    """What follows from the table of the plateau."""
    empty = f"The empty model has {-ROWS * math.log(2):.2f} nats on either data set."
    return "\n".join([empty, "", *(_on_the_plateau(data) for data in SMALL)])


def _on_the_plateau(data: str) -> str:
    exact, drawn = (readings(data, drawn=which) for which in (False, True))
    found = exact | drawn
    on = [line for lines in found.values() if settled(lines) for line in lines]
    off = [f"`{name}`" for name, lines in found.items() if not settled(lines)]
    left = [line for line in on if line["leaves_at_step"]]

    def of(lines: list[Row], key: str, digits: int = 1) -> str:
        return span([float(line[key]) for line in lines], digits)

    words = [
        f"- {data}: {sum(map(settled, exact.values()))} of {len(exact)} readings with the exact "
        f"expectation and {sum(map(settled, drawn.values()))} of {len(drawn)} with draws have "
        f"settled after {FEW} steps, for every seed. They stand there since step "
        f"{of(on, 'since_step', 0)}, at {of(on, 'stands')} nats with "
        f"{of(on, 'train_errors', 0)} training errors, and their largest mean is "
        f"{of(on, 'largest_ratio', 2)} of its sd. Not among them: {several(off)}."
    ]
    if left:
        names = [f"`{name}`" for name in grouped(left, "reading")]
        words.append(
            f"Of those that settle, {several(names)} leave the plateau at step "
            f"{of(left, 'leaves_at_step', 0)} and end at {of(left, 'end')} nats."
        )
    return " ".join(words)


def draws_said() -> str:
    """What follows from the table of draws."""
    lines = []
    for name in grouped(rows("lbfgs_draws.csv"), "data"):
        held = verdict([gap > 0 for _, gap in needed(name)[1]])
        lines.append(
            f"- {name}: L-BFGS-SGVI ends with a larger bound than DSVI {sides(name)}: {held}."
        )
    return "\n".join(lines)
