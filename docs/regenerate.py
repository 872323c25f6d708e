"""Regenerate what README and the manual show: the example, its output, its figure, measured tables.

Run ``python docs/regenerate.py`` after ``make bench``. Text between ``<!-- begin NAME -->`` and
``<!-- end NAME -->`` is replaced; everything else is written by hand.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def replace_block(path: Path, name: str, text: str) -> None:
    """Put text between the markers of a name."""
    pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    old = path.read_text()
    if not pattern.search(old):
        raise SystemExit(f"{path} has no block named {name}")
    path.write_text(pattern.sub(lambda match: match[1] + text + "\n" + match[2], old))


def run_example(name: str) -> tuple[str, str, dict]:
    """Source, printed output and final variables of an example."""
    path = ROOT / "examples" / f"{name}.py"
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        variables = runpy.run_path(str(path))
    return path.read_text().strip(), output.getvalue().strip(), variables


def as_table(rows: list[dict]) -> str:
    """A Markdown table from equal dictionaries."""
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(row.get(column, "")) for column in head) + " |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    """Rewrite README and the benchmark page."""
    source, printed, variables = run_example("logistic")
    block = f"```python\n{source}\n```\n\n```text\n{printed}\n```"
    replace_block(ROOT / "README.md", "example", block)
    variables["result"].plot().savefig(ROOT / "docs" / "images" / "logistic.png", dpi=110)
    page = ROOT / "docs" / "benchmarks.md"
    for name in re.findall(r"<!-- begin (\w+) -->", page.read_text()):
        result = RESULTS / f"{name}.json"
        if result.exists():
            tables = json.loads(result.read_text()).get("tables", {})
            text = "\n\n".join(f"*{title}*\n\n{as_table(rows)}" for title, rows in tables.items())
            replace_block(page, name, text)


if __name__ == "__main__":
    main()
