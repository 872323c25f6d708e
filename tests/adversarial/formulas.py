"""Formulas by grammar and by mutation, with an audit hook that reports whatever runs.

    python -m tests.adversarial.formulas 1000000 0

prints how many were refused and accepted, and fails where reading one or computing an accepted one
compiled, imported, opened or started anything, or raised anything but a refusal.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Iterator

import numpy as np
import pandas as pd

from curvi._core.errors import InputError
from curvi._core.text import printable
from curvi.mixed._formula import evaluate, parse

CODE = "__import__(chr(111)+chr(115)).system(chr(105)+chr(100))"
ATTACK = (
    "y ~ abs(x == \"a') + I(x == T.__globals__.__class__.__setitem__(T.__globals__.get("
    "'TRANSFORMS'), 'zz', T.__builtins__.get('eval'))) + exp(x == zz('"
    + CODE
    + "')) + cos(x == 'b\") + (1 | g)"
)
SEEDS = (
    ATTACK,
    "y ~ x + (1 + x | g)",
    "y ~ x * z + C(h, Treatment('b')) + (1 | g/h) + (0 + z || g)",
    "proportion(k, n) ~ poly(x, 2) + offset(log(n)) + (1 | g:h)",
    "log(y + 2) ~ {x**2} + I(x > 0) + scale(z) + bs(x, df=4) + (1 | g) + (1 | h)",
    "y ~ `odd name` + (x + z)**2 - x:z + S(h) - 1 + (poly(x, 2) | g)",
)
PIECES = (
    *"+-*/:|~(){}[],=<>%^.'\"`\\ \n_01",
    "**", "||", "==", "//", " x", " z", " h", " g", " y", "'b'", "\"a'", "'b\"", "__class__",
    "T.__globals__", "eval", "exec", "__import__", "open('f')", "np.log(x)", "lambda", "import os",
    "getattr(x, 'y')", "I(", "C(h", "poly(x, 2)", "\u202e", "\x00", "é", "1e5", "%in%", " if ",
    " for ", "@", ";", "!", "\t", "Intercept",
)  # fmt: skip
WATCHED = (
    "compile",
    "exec",
    "import",
    "open",
    "os.",
    "subprocess",
    "socket",
    "ctypes",
    "code.",
    "shutil",
)


def table() -> pd.DataFrame:
    """A few rows with every kind of column."""
    rng = np.random.default_rng(0)
    rows = 12
    return pd.DataFrame(
        {
            "y": rng.random(rows) + 1,
            "x": rng.standard_normal(rows),
            "z": rng.standard_normal(rows),
            "odd name": rng.standard_normal(rows),
            "k": rng.integers(0, 3, rows),
            "n": np.full(rows, 5),
            "h": np.array(list("abc") * 4, dtype=object),
            "g": np.array(list("ab") * 6, dtype=object),
        }
    )


def mutated(text: str, rng: random.Random) -> str:
    """A few insertions, deletions, swaps and pastes."""
    for _ in range(rng.randint(1, 4)):
        at, to = sorted(rng.randint(0, len(text)) for _ in range(2))
        kind = rng.randrange(4)
        if kind == 0:
            text = text[:at] + rng.choice(PIECES) + text[at:]
        elif kind == 1:
            text = text[:at] + text[min(to, at + 3) :]
        elif kind == 2:
            other = rng.choice(SEEDS)
            start = rng.randrange(len(other))
            text = text[:at] + other[start : start + rng.randint(1, 30)] + text[at:]
        else:
            text = text[:at] + rng.choice(PIECES) + text[min(to, at + 8) :]
    return text


def grown(rng: random.Random, depth: int = 3) -> str:
    """An expression of the grammar, now and then with a foreign piece."""
    if rng.random() < 0.03:
        return rng.choice(PIECES)
    if not depth or rng.random() < 0.3:
        return rng.choice(["x", "z", "h", "0", "1", "`odd name`", "log(n)", "{x + 1}", "C(h)"])
    left, right = grown(rng, depth - 1), grown(rng, depth - 1)
    shape = rng.choice(
        ["{} + {}", "{}:{}", "{} * {}", "({} + {})", "{} / {}", "{} - {}", "{} + ({} | g)"]
    )
    return shape.format(left, right)


@functools.cache
def _installed() -> list[list[tuple[str, str]]]:
    """The lists that events go to now; a hook cannot be taken away again, so there is one."""
    listeners: list[list[tuple[str, str]]] = []

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if listeners and event.startswith(WATCHED):
            listeners[-1].append((event, str(arguments)[:200]))

    sys.addaudithook(hook)
    return listeners


@contextlib.contextmanager
def watched() -> Iterator[list[tuple[str, str]]]:
    """What runs, is compiled, imported or opened inside."""
    events: list[tuple[str, str]] = []
    _installed().append(events)
    try:
        yield events
    finally:
        _installed().pop()


def main(count: int, seed: int) -> None:
    rng, frame = random.Random(seed), table()  # noqa: S311  no secret
    printable("\u202e")
    for text in SEEDS[1:]:  # what libraries import and compile at first use
        evaluate(parse(text), frame).evaluate(frame)
    refused = accepted = evaluated = 0
    for index in range(count):
        text = f"y ~ {grown(rng)} + (1 | g)" if index % 3 == 0 else mutated(rng.choice(SEEDS), rng)
        with watched() as events, contextlib.suppress(InputError):
            refused += 1
            formula = parse(text)
            refused, accepted = refused - 1, accepted + 1
            evaluate(formula, frame).evaluate(frame)
            evaluated += 1
        assert not events, (text, events)
    print(f"{refused} refused, {accepted} accepted, {evaluated} evaluated")  # noqa: T201
    assert accepted > count / 20, "too few were accepted to say anything"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
