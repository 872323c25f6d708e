"""What curvi is not good at, in numbers: sentences that follow from recorded results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Row = dict[str, Any]


def limits_text(load: Callable[[str], Row | None]) -> str:
    """One item for each thing that was measured."""
    items = [
        item
        for name, sentences in SENTENCES.items()
        if (result := load(name)) is not None
        for item in sentences(result)
    ]
    return "\n".join(f"- {item}" for item in items)


def _posteriors(result: Row) -> Iterator[str]:
    silent = ", ".join(result["silent"]) or "none"
    yield f"**Wrong without a warning** among the reference posteriors, nothing chosen: {silent}."
    for group, heads in result["headlines"].items():
        if "curvi" in heads:
            ours = heads["curvi"]
            yield (
                f"**{group[0].upper()}{group[1:]} posteriors**, nothing chosen: "
                f"{ours['models'] - ours['right']} of {ours['models']} are not right, "
                f"{ours['silent']} of them without a warning."
            )


def _cold_start(result: Row) -> Iterator[str]:
    found = result["FullRank"]
    yield (
        f"**First calls.** A first small fit takes {found['cold_total']:.1f} s in a new process, "
        f"{found['compile_total']:.1f} s of them compilation; a second one "
        f"{found['second_fit']:.2f} s. For a conjugate model that is a long time."
    )


def _regression(result: Row) -> Iterator[str]:
    found = result["a9a"]
    if found["dsvi_seconds"] is not None and found["dsvi_seconds"] < found["seconds"]:
        yield (
            "**A relevance prior on a9a** costs more than a rough answer does: "
            f"{found['seconds']:.1f} s to the optimum, while DSVI with its best rate is within 30 "
            f"nats after {found['dsvi_seconds']:.1f} s."
        )
    if hot := result.get("one_hot"):
        times = hot["speedup"]
        yield (
            "**Sparse indicators.** On 50,000 x 300 indicators SciPy's L-BFGS, as one writes it, "
            f"takes {times['array']:.1f} times as long as we do for an array and "
            f"{times['sparse']:.1f} times for a sparse matrix; on our own products and quadrature "
            f"{times['our products']:.1f} times."
        )


def _trust_region(result: Row) -> Iterator[str]:
    if result["slower_on"]:
        yield (
            "**Trust region, warm.** SciPy's solvers are faster on the same compiled objective for "
            + ", ".join(result["slower_on"])
            + "."
        )


def _span(race: Row, rival: str) -> str:
    """The least and the largest of the ratios of a rival."""
    ratios = [race["ratios"][f"{rival} {target}"]["ratio"] for target in race["rivals"][rival]]
    return f"{min(ratios):.1f} to {max(ratios):.1f}"


def _vae(result: Row) -> Iterator[str]:
    if race := result.get("mnist"):
        prepared = _span(race, "adam on the same coordinates and gradients")
        yield (
            "**Auto-encoders of MNIST.** Adam, tuned for each bound, takes "
            f"{_span(race, 'adam')} times as long as the default; on the same coordinates and with "
            f"the same gradients {prepared} times. That is what curvature saves, besides tuning."
        )
    lost = [
        name
        for name in ("digits", "frey", "olivetti")
        if name in result and not (result[name]["ratios"].get("adagrad / hessian_free") or 0) > 1
    ]
    if race and not all((ratio or 0) > 1 for ratio in race["hessian_free"]):
        lost.append("MNIST")
    if lost:
        yield (
            "**Hessian-free steps** do not reach the best bound of Adagrad in the same time on "
            + ", ".join(lost)
            + "; use KFAC."
        )


def _rows(result: Row) -> Iterator[str]:
    last = result["blocks"][-1]
    yield (
        f"**Rows in blocks** are generated or read again in every pass: {last['rows']:,} rows take "
        f"{last['seconds']:.0f} s."
    )


def _sequences(result: Row) -> Iterator[str]:
    worst = max(row["state_error"] for row in result["nuts"])
    yield (
        "**Series.** States are Gaussian given the hyperparameters, so that skewness is lost: the "
        f"worst state is {worst:.2f} sd from NUTS."
    )


def _music(result: Row) -> Iterator[str]:
    row, published = result["sets"].get("jsb"), 7.03
    if row is not None and row["test"] > published:
        yield (
            f"**Music.** A deep Markov model of chorales has {row['test']:.2f} nats per test step "
            f"after {row['processor_seconds']:.0f} processor seconds; {published} was published "
            "for such networks without a search."
        )


def _music_methods(result: Row) -> Iterator[str]:
    ratios = [row["ratio"] for row in result["runs"]]
    missed = sum(ratio is None for ratio in ratios)
    if missed:
        yield (
            "**KFAC for deep Markov models** does not reach Adam's best bound of "
            f"{result['budget']:.0f} processor seconds for {missed} of {len(ratios)} seeds; "
            "use Adam."
        )


def _paper_methods(result: Row) -> Iterator[str]:
    found = result["a9a_3000"]["methods"]
    broken = [name for name, row in found.items() if name.startswith("HFSGVI") and row["diverged"]]
    tried = [name for name in found if name.startswith("HFSGVI")]
    yield (
        f"**HFSGVI as printed**, except for steepest descent at negative curvature: {len(broken)} "
        f"of {len(tried)} settings diverge on 3,000 rows of a9a with the relevance prior. It is "
        "there for comparison."
    )


SENTENCES: dict[str, Callable[[Row], Iterator[str]]] = {
    "posteriors": _posteriors,
    "sequences": _sequences,
    "music": _music,
    "music_methods": _music_methods,
    "regression": _regression,
    "rows": _rows,
    "vae": _vae,
    "trust_region": _trust_region,
    "cold_start": _cold_start,
    "paper_methods": _paper_methods,
}
