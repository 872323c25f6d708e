"""The claims of the paper, each with a verdict that follows from the records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from statistics import median

from claim_records import (
    HOLDS,
    NOISE,
    NOT,
    RESULTS,
    Claim,
    grouped,
    middle,
    rows,
    several,
    span,
    verdict,
)
from claims_regressions import (
    draws_said,
    errors,
    fluctuates,
    larger_bound,
    many_iterations,
    plateau_said,
    sparse,
    ten_iterations,
    within_three,
)
from markdown import as_table

SOONER = 4.0  # times, the paper's
ONE_IMAGE = 0.01  # of the variance of the data: what is below is copies of one image
DATA = ("frey", "olivetti", "mnist")
DEAR = 3.0  # gradients
SETTINGS = ("curvi's settings", "the paper's settings")
METHODS = {"hessian_free": "Hessian-free", "lbfgs": "L-BFGS", "hfsgvi": "HFSGVI"}


def products() -> Claim:
    """The cost of a product with the Hessian."""
    result = json.loads((RESULTS / "products.json").read_text())
    cost, slope = (result["worst"][key] for key in ("jvp_in_gradients", "slope_flops"))
    return Claim(
        "theory",
        "A product with the Hessian costs about as much as a gradient; all is linear in the "
        "parameters",
        "[products](benchmarks.md#hessian-vector-products)",
        HOLDS if cost < DEAR and slope < NOISE else NOT,
        f"at most {cost:.1f} gradients; operations grow like the parameters to the power "
        f"{slope:.2f}",
    )


def variance() -> Claim:
    """Theorem 2."""
    lines = rows("concentration_variance.csv")
    worst = max(float(line["variance"]) / float(line["sharp"]) for line in lines)
    most = max(int(line["dimension"]) for line in lines)
    return Claim(
        "theory",
        "The variance of the estimator does not grow with the dimension",
        "{doc}`concentration`",
        HOLDS if worst < NOISE else NOT,
        f"up to dimension {most:,} at most {worst:.2f} of the sharp upper bound, which has no "
        "dimension in it",
    )


def sooner(data: str, settings: str, method: str) -> float | None:
    """Times sooner than Adagrad where it ends: the median; zero is never, None was not run."""
    found = grouped(rows(f"{data}/{data}_test.csv"), "settings", "method")
    lines = found.get((settings, method))
    return lines and median(float(line["times_sooner_than_adagrad"] or 0) for line in lines)


def _in_words(ratio: float | None) -> str:
    return "not run" if ratio is None else f"{ratio:.1f}" if ratio else "never"


def four_times() -> Claim:
    """Adagrad beside the methods of the paper: it has to hold with either settings."""
    held, said = [], []
    for data in DATA:
        found = {
            name: [sooner(data, settings, method) for settings in SETTINGS]
            for method, name in METHODS.items()
        }
        held += [
            any((ratio or 0) >= SOONER for ratio in one)
            for one in zip(*found.values(), strict=True)
        ]
        words = [f"{name} {' / '.join(map(_in_words, pair))}" for name, pair in found.items()]
        said.append(f"{data}: {', '.join(words)}")
    return Claim(
        "auto-encoders",
        "Adagrad takes at least four times as long to a similar bound",
        "[auto-encoders](reproduction.md#auto-encoders)",
        verdict(held),
        "times sooner than Adagrad to the bound that it ends at, with curvi's / the paper's "
        f"settings, medians (never: not in the seconds of a run): {'; '.join(said)}",
    )


def faces() -> Claim:
    """Errors of the reconstructions of Olivetti."""
    found = grouped(rows("olivetti/olivetti_test.csv"), "settings", "method")
    held, said = [], []
    for (settings, method), lines in found.items():
        if method in METHODS:
            share = middle(lines, "test_squared_error") / middle(
                found[settings, "adagrad"], "test_squared_error"
            )
            held.append(share < 1)
            said.append(f"{METHODS[method]} {share:.2f} with {settings}")
    return Claim(
        "auto-encoders",
        "Adagrad's faces are mean faces, those of second order are individual",
        "[Olivetti](reproduction.md#olivetti)",
        verdict(held),
        f"squared error of a reconstruction as a share of Adagrad's: {several(said)}; whether a "
        "face is somebody's is for the pictures to say",
    )


def spread(data: str) -> dict[str, float]:
    """Variance of the images of a plane of codes over that of the data, by method."""
    lines = rows(f"{data}/{data}_manifold.csv")
    return {one["method"]: float(one["share_of_the_variance_of_the_data"]) for one in lines}


def copies(data: str, method: str = "hfsgvi") -> bool:
    """Whether a plane of codes decodes to one image over and over."""
    return spread(data)[method] < ONE_IMAGE


def manifolds() -> Claim:
    """What HFSGVI makes of a plane of two codes."""
    said = [
        f"{data} {spread(data)['hfsgvi']:.2f}"
        f"{' (copies of one image)' if copies(data) else ''}, "
        f"Hessian-free {spread(data)['hessian_free']:.2f}"
        for data in DATA
    ]
    return Claim(
        "auto-encoders",
        "The model that HFSGVI learns simulates images from two codes",
        "[auto-encoders](reproduction.md#auto-encoders)",
        verdict([not copies(data) for data in DATA]),
        "variance over the images of a plane as a share of that over the data, in the reading of "
        f"HFSGVI that a pilot run chose: {'; '.join(said)}",
    )


def decoder_said() -> str:
    """What follows from the measurements of a decoder in training."""
    lines = rows("concentration_decoder.csv")
    above = [float(line["upper bound / measured"]) for line in lines]
    moved = [math.sqrt(float(line["measured variance [nats^2]"])) for line in lines]
    noisy = [line["epochs"] for line in lines if float(line["gradient error, M = 1"]) > 1]
    return (
        f"The upper bound of the decoder is {min(above):,.0f} to {max(above):,.0f} times the "
        f"measured variance. One draw moves the reconstruction term of an image by {span(moved)} "
        f"nats (an sd). After {several(noisy)} epochs the error of the gradient was larger than "
        "the gradient."
    )


def sparse_pixels() -> Claim:
    """MNIST, where the paper concedes that Adagrad may win."""
    found = [sooner("mnist", settings, "hessian_free") for settings in SETTINGS]
    return Claim(
        "auto-encoders",
        "Adagrad may be faster where pixels are sparse",
        "[MNIST](reproduction.md#mnist)",
        verdict([(ratio or 0) < 1 for ratio in found]),
        "times that Hessian-free steps are sooner than Adagrad on MNIST, with curvi's / the "
        f"paper's settings: {' / '.join(map(_in_words, found))}",
    )


CLAIMS = (
    products, variance, errors, within_three, larger_bound, fluctuates, many_iterations, sparse,
    ten_iterations, four_times, faces, sparse_pixels,
)  # fmt: skip


def claims_table() -> str:
    """The table of the page about the paper."""
    return as_table(
        [
            {"the paper says": one.says, "where it is measured": one.where,
             "verdict": f"**{one.verdict}**", "what we see": one.seen}
            for one in (claim() for claim in CLAIMS)
        ]
    )  # fmt: skip


def claims_of(part: str) -> str:
    """The claims of a part of the paper as a list."""
    return "\n".join(
        f"- *{one.says}:* **{one.verdict}**; {one.seen}."
        for one in (claim() for claim in CLAIMS)
        if one.part == part
    )


SAID = {"plateau": plateau_said, "lbfgs_draws": draws_said, "concentration": decoder_said}


def claim_blocks() -> Iterator[tuple[str, str, str]]:
    """Page, block and text of everything that follows from claims."""
    yield "paper.md", "claims", claims_table()
    for part in ("theory", "regressions", "auto-encoders"):
        yield "paper_in_ten_minutes.md", f"claims_{part}", claims_of(part)
