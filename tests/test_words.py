"""One spelling, and the field's words, in source and pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_architecture import ROOT

pytestmark = pytest.mark.float64_only

WRITTEN = ("src/**/*.py", "src/**/*.html", "docs/**/*.md", "docs/*.py", "examples/**/*.py", "*.md")
# curvi is written in British English: minimise, colour, centre, behaviour. Americans among the
# words of a file are names of other libraries, titles, and names that a formula shares with R.
AMERICAN = re.compile(
    r"(?:(?:minim|maxim|optim|normal|standard|general|linear|initial|regular|parameter|random"
    r"|factor|general|summar|recogn|organ|penal|vector|token|final|discret|analy|local|marginal"
    r"|symmetr|quant|util|emphas|real|visual|character|categor|priorit|custom|author)"
    r"(?:iz|yz)(?:e[sdr]?|ers|ing|ations?)"
    r"|(?:colo|behavio|favo|neighbo|hono|labo|flavo)rs?(?:ed|ing|s|al|able|hood)?"
    r"|(?:un|re|non)?center(?:s|ed|ing)?|grays?|(?:un|re)?(?:model|label|cancel|travel|signal)"
    r"(?:ed|ing)|fulfills?|artifacts?|catalogs?|judgments?|defense|licenses?|skeptical)"
)
AMERICANS = {
    "standardize": "option of the estimators, and a function of formulas",
    "center": "function of formulas; alignment in matplotlib",
    "centered": "name of a reference posterior",
    "noncentered": "name of a reference posterior",
    "optimization": "titles of papers",
    "linearize": "jax.linearize",
    "factorize": "function of pandas",
    "finalize": "option of jinja2",
    "initialize": "jax.distributed.initialize",
    "initialization": "module of NumPyro",
    "marginalize": "function of pymc_extras",
    "color": "matplotlib and CSS",
    "colors": "matplotlib",
    "gray": "colour map of matplotlib",
    "optimize": "scipy.optimize",
    "minimize": "scipy.optimize.minimize",
}
# What the field calls otherwise, and how.
RETIRED = {
    r"fl(?:ew|ies|y|own) off": "diverges, divergence",
    r"Hamiltonian transitions|transitions from (?:draws of )?q": "HMC",
    r"(?:un|not |has |have )settled": "converged",
    r"\bdares\b": "step size, trust radius",
    r"\bmirrors = ": "distant starts",
    r"_corner\b|\bdense corner\b|\bcorner of the (?:precision|arrow)": "dense block",
}
# A sentence of the paper is discussed on these pages in its reader's sense.
ABOUT_PLATEAUS = {
    "docs/reproduction.md", "docs/paper.md", "docs/paper_in_ten_minutes.md",
    "docs/claims_regressions.py", "src/curvi/paper/experiments/_conditions.py",
}  # fmt: skip


def files() -> list[Path]:
    return [path for pattern in WRITTEN for path in sorted(ROOT.glob(pattern))]


def american_words(text: str) -> set[str]:
    """Words in American spelling that no other library explains, the parts of a name each."""
    words = set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower()))
    return {word for word in words if AMERICAN.fullmatch(word)} - set(AMERICANS)


def retired_words(text: str) -> dict[str, str]:
    """What is said in words that the field does not use, with the word that it does."""
    return {hit[0]: word for pattern, word in RETIRED.items() for hit in re.finditer(pattern, text)}


def test_the_spelling_is_british_everywhere():
    american = {str(path.relative_to(ROOT)): american_words(path.read_text()) for path in files()}
    assert {path: words for path, words in american.items() if words} == {}


def test_no_exception_from_the_spelling_is_without_use():
    text = "\n".join(path.read_text() for path in files())
    assert [word for word in AMERICANS if word not in text.lower()] == []


def test_retired_words_stay_retired():
    old = {
        str(path.relative_to(ROOT)): retired_words(path.read_text())
        for path in files()
        if path.relative_to(ROOT).as_posix() not in ABOUT_PLATEAUS
    }
    assert {path: words for path, words in old.items() if words} == {}


def test_a_planted_word_is_found():
    assert american_words("a behavior, minimize_all(), Optimizers and a Color") == {
        "behavior", "optimizers",
    }  # fmt: skip
    assert american_words("behaviour, minimise, size, prize, contours, parlor") == set()
    assert retired_words("0.1% flew off, not settled")["flew off"] == "diverges, divergence"
    assert retired_words("HMC: converged, 0.1% divergences") == {}
