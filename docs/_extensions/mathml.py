"""Formulas as MathML: they need no network, no script and no LaTeX, and a screen reader reads them.

``latex2mathml`` converts each formula while the manual is built. Browsers lay MathML out with the
font of the page, and few machines have one with a table for mathematics, so STIX Two Math, which
comes with ``ziamath``, is put beside the pages.
"""

from __future__ import annotations

import re
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from docutils import nodes
from fontTools.ttLib import TTFont
from latex2mathml.converter import convert
from sphinx.application import Sphinx

FONT = "stix-two-math.woff"
_TAG = re.compile(r"\\tag\{([^}]*)\}")
# What the converter sets too tight: operators before a letter, relations between letters, primes.
_SPACING = (
    (
        re.compile(r"\\(log|exp|sin|cos|diag|det|max|min|Var)(?=\s*(?:\\?[a-zA-Z]|\||\\lvert))"),
        r"\\\1\\,",
    ),
    (re.compile(r"\\sim\b"), r"\\;\\sim\\;"),
    (re.compile(r"''"), r"^{\\prime\\prime}"),
)


def to_mathml(latex: str, *, display: bool) -> tuple[str, str]:
    """A formula as MathML, and the number that ``\\tag`` gives it."""
    numbers = _TAG.findall(latex)
    latex = _TAG.sub("", latex).strip()
    if display and r"\\" in latex and r"\begin" not in latex:
        latex = rf"\begin{{aligned}}{latex}\end{{aligned}}"
    for pattern, replacement in _SPACING:
        latex = pattern.sub(replacement, latex)
    return convert(latex, display="block" if display else "inline"), "".join(numbers)


def visit_inline(translator: Any, node: nodes.Element) -> None:
    """Write a formula inside a sentence."""
    translator.body.append(to_mathml(node.astext(), display=False)[0])
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.Element) -> None:
    """Write a formula on a line of its own, with its number at the right."""
    text, number = to_mathml(node.astext(), display=True)
    number = number or (str(node["number"]) if node.get("number") else "")
    label = f'<span class="equation-number">({number})</span>' if number else ""
    translator.body.append(f'<div class="formula">{text}{label}</div>')
    raise nodes.SkipNode


def write_font(app: Sphinx, error: Exception | None) -> None:
    """Put the font beside the style sheet."""
    if error is None and app.builder.format == "html":
        with as_file(files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf") as source:
            font = TTFont(source)
            font.flavor = "woff"
            font.save(Path(app.outdir) / "_static" / FONT)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer of formulas with Sphinx."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("build-finished", write_font)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
