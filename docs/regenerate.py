"""Regenerate what README and the manual show: the example, its output, its figure, measured tables.

Run ``python docs/regenerate.py`` after ``make bench``; with the argument ``reliability`` it only
counts the hostile cases of the test suite again. Text between ``<!-- begin NAME -->`` and
``<!-- end NAME -->`` is replaced; everything else is written by hand.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

from tables import TABLES, second_calls

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def replace_block(path: Path, name: str, text: str) -> None:
    """Put text between the markers of a name."""
    pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    old = path.read_text()
    if not pattern.search(old):
        raise SystemExit(f"{path} has no block named {name}")
    path.write_text(pattern.sub(lambda match: match[1] + text + "\n" + match[2], old))


def run_example(name: str) -> tuple[str, str, dict[str, Any]]:
    """Source, printed output and final variables of an example."""
    path = ROOT / "examples" / f"{name}.py"
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        variables = runpy.run_path(str(path))
    return path.read_text().strip(), output.getvalue().strip(), variables


EXPERIMENTS = ("table1", "logistic", "coefficients")


def reproduction() -> None:
    """Put what ``curvi reproduce all`` wrote into the manual."""
    for name in EXPERIMENTS:
        text = RESULTS / "reproduction" / f"{name}.md"
        if text.exists():
            replace_block(ROOT / "docs" / "reproduction.md", name, text.read_text().strip())
        figure = text.with_suffix(".png")
        if figure.exists():
            (ROOT / "docs" / "images" / f"reproduction_{figure.name}").write_bytes(
                figure.read_bytes()
            )


def auto_encoders() -> None:
    """Put what ``curvi reproduce frey``, ``olivetti`` and ``mnist`` wrote into the manual."""
    titles = {
        "convergence": "The bound against time and epochs",
        "reconstructions": "Held-out images, reconstructed by every method",
        "denoise_impute": "Denoised and imputed images",
        "manifold": "What the codes of a plane decode to",
    }
    for name in ("frey", "olivetti", "mnist"):
        folder = RESULTS / "reproduction" / name
        if not (folder / f"{name}.md").exists():
            continue
        shown = [(folder / f"{name}.md").read_text().strip()]
        for kind, title in titles.items():
            figure = folder / f"{name}_{kind}.png"
            if figure.exists():  # the manual keeps the only copy
                figure.replace(ROOT / "docs" / "images" / figure.name)
            shown.append(f"![{title}: {name}](images/{figure.name})")
        replace_block(ROOT / "docs" / "reproduction.md", name, "\n\n".join(shown))


def concentration() -> None:
    """Put what ``curvi reproduce concentration`` wrote into the manual."""
    text = RESULTS / "reproduction" / "concentration.md"
    if not text.exists():
        return
    shown = [text.read_text().strip()]
    for name, title in (
        ("variance", "Variance against dimension: measured, and three upper bounds"),
        ("tails", "Tail probability against the number of draws"),
        ("decoder", "Upper bound and measured noise of a decoder during training"),
    ):
        figure = f"concentration_{name}.png"
        (ROOT / "docs" / "images" / figure).write_bytes((text.parent / figure).read_bytes())
        shown.append(f"![{title}](images/{figure})")
    replace_block(ROOT / "docs" / "concentration.md", "concentration", "\n\n".join(shown))


def reliability() -> None:
    """Count the cases of ``tests/adversarial``, in a process with the settings of the tests."""
    command = [sys.executable, "-m", "tests.adversarial.census"]
    counted = subprocess.run(  # noqa: S603, the command is ours
        command, cwd=ROOT, check=True, capture_output=True, text=True
    )
    replace_block(ROOT / "docs" / "reliability.md", "adversarial", counted.stdout.strip())


def measured() -> str:
    """The lines of README, from the same results as the tables of the manual."""
    lines = []
    posteriors, regression, vae = (
        json.loads(path.read_text()) if (path := RESULTS / f"{name}.json").exists() else None
        for name in ("posteriors", "regression", "vae")
    )
    if posteriors:
        ours = posteriors["headlines"]["curvi MeanField, linear response"]
        theirs = posteriors["headlines"]["DADVI pymc-extras"]
        race = posteriors["against_dadvi"]["curvi MeanField, linear response"]
        again = second_calls(posteriors, "curvi MeanField, linear response")
        lines.append(
            f"- {ours['models']} posteriors with reference draws, at defaults (mean field, linear "
            f"response): median error of the means {ours['mean_error']:.3f} sd, of the sds "
            f"{100 * ours['sd_error']:.1f} %, {100 * ours['converged']:.0f} % converged. DADVI of "
            f"pymc-extras on {theirs['models']} of them: {theirs['mean_error']:.2f} sd, "
            f"{100 * theirs['sd_error']:.0f} %, {100 * theirs['converged']:.0f} %; it takes "
            f"{race['total_dadvi'] / race['total']:.1f} times as long in first calls and "
            f"{race['total_dadvi_again'] / again:.1f} times as long in second ones."
        )
    if regression:
        normal, ard = regression["a9a_normal"], regression["a9a"]
        lines.append(
            f"- Logistic regression on a9a (32,561 rows): the exact optimum in "
            f"{normal['seconds_warm']:.2f} s; NumPyro's AutoNormal with its best Adam is within 15 "
            f"nats of it after {normal['numpyro_seconds']:.1f} s. With a relevance prior, "
            f"{ard['seconds']:.1f} s to {max(ard['elbo']):.1f} nats; DSVI ends at "
            f"{max(run['best_bound'] for run in ard['dsvi']):.1f}."
        )
    if vae and "mnist" in vae:
        ratios = vae["mnist"]["ratios"]
        shares = ", ".join(
            f"{'at least ' if (found := ratios[f'adam {target}'])['at_least'] else ''}"
            f"{found['ratio']:.1f} times as long to {target}"
            for target in vae["mnist"]["rivals"]["adam"]
        )
        lines.append(
            f"- An auto-encoder of MNIST: Adam, tuned for each bound, takes {shares} nats as the "
            "default, which has no learning rate to tune."
        )
    return "\n".join(lines)


def main() -> None:
    """Rewrite README and the pages with figures."""
    reliability()
    if sys.argv[1:] == ["reliability"]:
        return
    source, printed, variables = run_example("logistic")
    block = f"```python\n{source}\n```\n\n```text\n{printed}\n```"
    replace_block(ROOT / "README.md", "example", block)
    variables["result"].plot().savefig(ROOT / "docs" / "images" / "logistic.png", dpi=110)
    for name, table in TABLES.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            result = json.loads(path.read_text())
            replace_block(ROOT / "docs" / "benchmarks.md", name, table(result))
    replace_block(ROOT / "README.md", "measured", measured())
    reproduction()
    auto_encoders()
    concentration()


if __name__ == "__main__":
    main()
