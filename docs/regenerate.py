"""Regenerate what README and the manual show: the example, its output, its figure, measured tables.

Run ``python docs/regenerate.py`` after ``make bench``. With the argument ``results`` it only puts
measured results into the pages, with ``reliability`` it only counts the hostile cases of the test
suite again, with ``rooms`` it only draws the rooms of the source again, with ``outputs`` it only
runs the examples of the pages. Text between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` is
replaced; everything else is written by hand.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmark_figures import FIGURES
from benchmark_headlines import HEADLINES
from claims_table import SAID, claim_blocks, copies
from limits_text import limits_text
from pages import pages, replace_outputs, shown
from readme_table import measured_table
from report_picture import report_picture
from scale_text import scale_text
from tables import TABLES

from curvi.paper.experiments._provenance import sentence

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks" / "results"
RECORDED = RESULTS / "reproduction"
# Where a table stands that is not on the page of benchmarks.
PAGES = dict.fromkeys(("sequences", "music", "music_methods", "policies"), "sequences.md")


class Block(NamedTuple):
    """Text that a page shows between the markers of a name."""

    page: Path
    name: str
    text: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """What stands between the markers, and the markers."""
        return re.compile(
            rf"(<!-- begin {self.name} -->\n)(.*?)(<!-- end {self.name} -->)", re.DOTALL
        )

    def shown(self) -> str:
        """What the page shows now."""
        found = self.pattern.search(self.page.read_text())
        if found is None:
            raise SystemExit(f"{self.page} has no block named {self.name}")
        return found[2].removesuffix("\n")

    def put(self) -> None:
        """Put the text between the markers."""
        self.shown()
        old = self.page.read_text()
        self.page.write_text(self.pattern.sub(lambda m: f"{m[1]}{self.text}\n{m[3]}", old))


def replace_block(path: Path, name: str, text: str) -> None:
    """Put text between the markers of a name."""
    Block(path, name, text).put()


def run_example(name: str) -> tuple[str, str, dict[str, Any]]:
    """Source, printed output and final variables of an example."""
    path = ROOT / "examples" / f"{name}.py"
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        variables = runpy.run_path(str(path))
    return path.read_text().strip(), output.getvalue().strip(), variables


def measured_blocks() -> Iterator[Block]:
    """Everything on a page that follows from result files; a test compares it with the pages."""
    for name, table in TABLES.items():
        result = load(RESULTS / f"{name}.json")
        if result:
            text = measured_section(name, result, table(result))
            yield Block(DOCS / PAGES.get(name, "benchmarks.md"), name, text)
    yield Block(DOCS / "limits.md", "limits", limits_text(lambda n: load(RESULTS / f"{n}.json")))
    if scale := load(RESULTS / "scale.json"):
        text = f"{scale_text(scale)}\n\n{made(scale)}"
        yield Block(DOCS / "durability.md", "scale", text)
    yield Block(README, "measured", measured())
    for name, page, figures in EXPERIMENTS:
        folder = RECORDED if (RECORDED / f"{name}.md").exists() else RECORDED / name
        text, record = folder / f"{name}.md", load(folder / f"{name}.provenance.json")
        if text.exists() and record:
            pictures = [
                f"![{title}](images/{figure}){{.{'picture' if is_picture(figure) else 'drawing'}}}"
                for figure, title in figures.items()
                if (DOCS / "images" / figure).exists()
            ]
            said = [SAID[name]()] if name in SAID else []
            parts = [text.read_text().strip(), *said, *pictures, sentence(record)]
            yield Block(DOCS / page, name, "\n\n".join(parts))
    for page, name, text in claim_blocks():
        yield Block(DOCS / page, name, text)


def is_picture(figure: str) -> bool:
    """Whether a figure shows images, which a dark page must not invert."""
    return any(kind in figure for kind in ("reconstructions", "denoise", "manifold"))


def measured_section(name: str, result: dict[str, Any], table: str) -> str:
    """What a benchmark says, its figure, and the table behind it."""
    figure = ""
    if name in FIGURES:
        figure = f"![{FIGURES[name][1]}](images/benchmark_{name}.png){{.drawing}}\n\n"
    return (
        f"{HEADLINES[name](result)}\n\n{figure}"
        f"::::{{dropdown}} The numbers\n{table}\n::::\n\n{made(result)}"
    )


def draw_benchmarks() -> None:
    """Draw the figure of every benchmark that has results."""
    for name, (draw, _) in FIGURES.items():
        if (result := load(RESULTS / f"{name}.json")) is not None:
            draw(result).savefig(DOCS / "images" / f"benchmark_{name}.png", dpi=110)


def load(path: Path) -> dict[str, Any] | None:
    """A result file, if there is one."""
    return json.loads(path.read_text()) if path.exists() else None


def _faces(name: str) -> dict[str, str]:
    titles = {
        "convergence": "The bound against time and epochs",
        "convergence_paper": "The same with the paper's settings",
        "reconstructions": "Held-out images, reconstructed by every method",
        "reconstructions_paper": "The same with the paper's settings",
        "denoise_impute": "Denoised and imputed images",
        "manifold": "What the codes of a plane decode to",
        "manifold_10": "The same, ten by ten",
        "manifold_hessian_free": "What the codes of a plane decode to, by Hessian-free",
        "manifold_hessian_free_10": "The same, ten by ten",
        "manifold_hfsgvi_10": "The same by HFSGVI with the paper's settings",
    }
    if (RECORDED / name / f"{name}_manifold.csv").exists() and copies(name):
        titles["manifold_hfsgvi_10"] += ", copies of one image"
    return {f"{name}_{kind}.png": f"{title}: {name}" for kind, title in titles.items()}


# Experiment, page, and the figures that the block shows.
EXPERIMENTS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("table1", "reproduction.md", {}),
    ("logistic", "reproduction.md", {
        "reproduction_logistic.png":
            "Nats below the best bound against processor time and epochs, three data sets",
    }),
    ("cg_steps", "reproduction.md", {}),
    ("plateau", "reproduction.md", {}),
    ("lbfgs_draws", "reproduction.md", {}),
    ("coefficients", "reproduction.md", {
        "reproduction_coefficients.png": "Estimated coefficients, three data sets",
    }),
    *((name, "reproduction.md", _faces(name)) for name in ("frey", "olivetti", "mnist")),
    ("concentration", "concentration.md", {
        "concentration_variance.png": "Variance against dimension, and three upper bounds",
        "concentration_tails.png": "Tail probability against the number of draws",
        "concentration_decoder.png": "Upper bound and measured noise of a decoder during training",
    }),
)  # fmt: skip


def made(result: dict[str, Any]) -> str:
    """How a record was made; where its parts were measured one by one, how each of them was."""
    parts = result.get("measured") or {}
    if not parts:
        return sentence(result["provenance"])
    by_sentence: dict[str, list[str]] = {}
    for name, record in parts.items():
        by_sentence.setdefault(sentence(record), []).append(name)
    return "\n\n".join(f"{', '.join(names)}: {how}" for how, names in by_sentence.items())


def move_figures() -> None:
    """Figures of the experiments go to the manual, which keeps the only copy."""
    for name, _, _ in EXPERIMENTS:
        for figure in (*RECORDED.glob(f"{name}*.png"), *(RECORDED / name).glob("*.png")):
            # The plain name of an experiment may be that of another picture of the manual.
            own = f"reproduction_{figure.name}" if figure.stem == name else figure.name
            figure.replace(DOCS / "images" / own)


def from_tests(module: str, page: Path, name: str) -> None:
    """Put what a module of the tests prints into a block, in a process with their settings."""
    command = [sys.executable, "-m", module]
    done = subprocess.run(  # noqa: S603, the command is ours
        command, cwd=ROOT, check=True, capture_output=True, text=True
    )
    replace_block(page, name, done.stdout.strip())


# What a page says of the tests and of the source: a module that prints it, the page, the block.
COUNTED = {
    "reliability": ("tests.adversarial.census", DOCS / "reliability.md", "adversarial"),
    "rooms": ("tests.test_architecture", ROOT / "ARCHITECTURE.md", "rooms"),
}


def page_outputs() -> None:
    """Run the examples of README and all pages in a process of their own; show what they print."""
    found = [README, *pages()]
    names = [os.path.relpath(page, DOCS) for page in found]
    command = [sys.executable, str(DOCS / "pages.py"), *names]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    for page, printed in zip(found, json.loads(done.stdout).values(), strict=True):
        if len(printed) != len(shown(page)) or "Traceback" in printed[-1]:
            raise SystemExit(f"{page.name}: {printed[-1]}")
        replace_outputs(page, printed)


def measured() -> str:
    """The table of README, from the same results as the tables of the manual."""
    names = ("posteriors", "regression", "vae")
    return measured_table(*(load(RESULTS / f"{name}.json") for name in names))


def main() -> None:
    """Rewrite README and the pages with figures."""
    wanted = sys.argv[1:]
    if wanted == ["outputs"]:
        page_outputs()
        return
    for name, counted in COUNTED.items():
        if wanted in ([], [name]):
            from_tests(*counted)
    if wanted and wanted[0] in COUNTED:
        return
    move_figures()
    draw_benchmarks()
    for block in measured_blocks():
        block.put()
    if wanted == ["results"]:
        return
    page_outputs()
    report_picture()
    _, _, variables = run_example("logistic")
    names = list(variables["table"].feature_names[: len(variables["result"].mean)])
    variables["result"].plot(names).savefig(ROOT / "docs" / "images" / "logistic.png", dpi=110)


if __name__ == "__main__":
    main()
