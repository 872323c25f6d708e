"""How large the house is. Each figure has a ceiling, which falls with every clean-up.

Raising a ceiling takes a commit of its own that names the capability it pays for.
"""

from __future__ import annotations

import ast
import functools
import io
import tokenize
from pathlib import Path

import pytest

from tests.test_architecture import SOURCE, imported_modules

pytestmark = pytest.mark.float64_only

SLICES = {"glm", "mixed", "vae", "sequences"}
CEILINGS = {
    "files": 321,
    "lines of code": 40794,
    "numeric constants of modules": 120,
    "imports of private modules across rooms": 10,
    "imports between slices": 0,
    "files that name KeyboardInterrupt": 3,
}
_SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


def lines_of_code(text: str) -> int:
    """Lines that hold code: neither blank, nor a comment, nor a docstring."""
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _SILENT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - docstrings)


def is_number(node: ast.expr | None) -> bool:
    """Whether an expression is built from numbers alone."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.Tuple) and bool(node.elts) and all(map(is_number, node.elts))


def numeric_constants(tree: ast.Module) -> int:
    """Names that a module binds to numbers; one statement may bind several."""
    count = 0
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_number(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            count += sum(len(t.elts) if isinstance(t, ast.Tuple) else 1 for t in targets)
    return count


@functools.cache
def measure(root: Path) -> dict[str, int]:
    """The figures of a tree."""
    figures = dict.fromkeys(CEILINGS, 0)
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        inside = path.relative_to(root).with_suffix("").parts
        here = inside[0]
        figures["files"] += 1
        figures["lines of code"] += lines_of_code(text)
        figures["numeric constants of modules"] += numeric_constants(tree)
        figures["files that name KeyboardInterrupt"] += "KeyboardInterrupt" in text
        modules = {tuple(name.split(".")[1:3]) for _, name in imported_modules(
            tree, ("curvi", *inside[:-1])) if name.startswith("curvi.")}  # fmt: skip
        foreign = {parts for parts in modules if parts[0] not in (here, "_core")}
        private = {parts for parts in foreign if len(parts) == 2 and parts[1].startswith("_")}
        if len(inside) > 1:
            figures["imports of private modules across rooms"] += len(private)
        if here in SLICES:
            figures["imports between slices"] += len({p[0] for p in foreign} & SLICES)
    return figures


@pytest.mark.parametrize("figure", CEILINGS)
def test_the_house_has_not_grown(figure):
    assert measure(SOURCE)[figure] <= CEILINGS[figure]


def test_what_is_counted_is_counted(tmp_path):
    (tmp_path / "glm").mkdir()
    (tmp_path / "glm" / "a.py").write_text(
        '"""A."""\n\n# why\nA, B = 1, -2.5\nC = True\nD = (1, 2**3)\nE = [1]\n'
        "from curvi.mixed._table import checked\nfrom curvi.mixed import MixedModel\n"
        "from curvi._core.errors import InputError\nfrom curvi.glm._base import x\n"
        'def f():\n    """F."""\n    raise KeyboardInterrupt\n',
        encoding="utf-8",
    )
    assert measure(tmp_path) == {
        "files": 1,
        "lines of code": 10,
        "numeric constants of modules": 3,
        "imports of private modules across rooms": 1,
        "imports between slices": 1,
        "files that name KeyboardInterrupt": 1,
    }
