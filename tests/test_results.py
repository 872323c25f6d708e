"""Recorded results say where they come from, are not outdated, and are what the pages show."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from pathlib import Path

import pytest

import curvi
from curvi.paper.experiments._provenance import PACKAGE, command_line, provenance, sentence

pytestmark = pytest.mark.float64_only

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
REFERENCES = "_references.json"  # posteriors by NUTS: they measure nothing of curvi


def records() -> dict[str, dict]:
    """The provenance of every result file, by its path."""
    found = {}
    for path in sorted(RESULTS.rglob("*.json")):
        if not path.name.endswith(REFERENCES):
            content = json.loads(path.read_text())
            beside = path.name.endswith(".provenance.json")
            found[str(path.relative_to(RESULTS))] = content if beside else content["provenance"]
    return found


ENGINE = ("diagnostics", "engine", "families", "inference", "linalg", "objective", "solvers")
# The rooms whose change may move a record; "reproduction/NAME" stands for a folder or a file there.
MEASURED = {
    "cold_start": ENGINE, "conjugate": ENGINE, "draws": ("families", "objective"),
    "groups": ENGINE, "import": ("_core",), "mixed": ("latent", "linalg", "mixed"),
    "music": ("vae",),
    "music_methods": ("vae",), "paper_methods": ("solvers",), "policies": ("solvers",),
    "posteriors": ENGINE, "products": ("linalg", "objective"), "regression": ("glm",),
    "rows": ("glm", "objective"), "scale": ("engine", "vae"),
    "sequences": ("latent", "linalg", "sequences"),
    "trust": ENGINE, "trust_region": ("linalg", "solvers"), "vae": ("vae",),
    "vae_settings": ("vae",), "cg_steps": ("solvers",), "coefficients": ("glm", "solvers"),
    "concentration": ("paper/concentration",), "plateau": ("solvers",),
    "lbfgs_draws": ("solvers",), "logistic": ("glm", "solvers"),
    "table1": ("glm", "solvers"), "frey": ("vae",), "mnist": ("vae",), "olivetti": ("vae",),
}  # fmt: skip
MOST_COMMITS = 200  # to what a record measures, before it must be made again


def commits_since(commit: str, rooms: tuple[str, ...]) -> int | None:
    """Commits that touched rooms of curvi since another; None outside a history that knows it."""
    paths = [f"src/curvi/{room}" for room in rooms]
    words = ["git", "rev-list", "--count", f"{commit}..HEAD", "--", *paths]
    done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else None


def test_the_pages_show_what_the_results_say(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import regenerate

    outdated = [
        f"{block.name} in {block.page.name}"
        for block in regenerate.measured_blocks()
        if block.shown() != block.text
    ]
    assert outdated == [], "run python docs/regenerate.py results"


@pytest.mark.parametrize("path", records())
def test_a_result_is_not_much_older_than_what_it_measures(path):
    rooms = MEASURED[Path(path).name.split(".")[0]]
    assert all((ROOT / "src" / "curvi" / room).is_dir() for room in rooms)
    since = commits_since(records()[path]["commit"], rooms)
    if since is None:
        pytest.skip("the history of this checkout does not hold the commit of the record")
    assert since <= MOST_COMMITS, f"{since} commits to {', '.join(rooms)} since; measure it again"


def test_the_verdict_of_a_claim_follows_its_record(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import claims_regressions as claims

    def lines(*bounds):
        methods = ("DSVI", *(f"L-BFGS-SGVI, {draws} draws" for draws in (10, 100, 300)))
        return [
            {"data": "a9a", "method": method, "draws": method.split()[-2:][0], "bound": str(bound)}
            for method, bound in zip(methods, bounds, strict=True)
        ]

    for bounds, enough, words in (
        ((-10, -9, -8, -7), 10, "with 10 draws or more"),
        ((-10, -11, -9, -8), 100, "with 100 draws or more"),
        ((-10, -9, -11, -8), 300, "with 300 draws ("),
        ((-10, -9, -8, -11), None, "with no number of draws that was run"),
    ):
        monkeypatch.setattr(claims, "rows", lambda name, bounds=bounds: lines(*bounds))
        assert claims.needed("a9a")[0] == enough
        assert claims.sides("a9a").startswith(words)
    assert claims.verdict([True, True]) == "holds"
    assert claims.verdict([True, False]) == "holds with a condition"
    assert claims.verdict([False, False]) == "does not hold"
    run = {"since_step": "3", "stands": "-26", "start": "-30", "largest_ratio": "0.2"}
    assert claims.settled([run, run])
    for change in ({"since_step": "4"}, {"since_step": ""}, {"stands": "-31"},
                   {"largest_ratio": "1.5"}):  # fmt: skip
        assert not claims.settled([run, run | change])


@pytest.mark.parametrize("path", records())
def test_a_result_names_the_command_the_commit_and_the_versions_that_made_it(path):
    record = records()[path]
    assert re.fullmatch("[0-9a-f]{40}", record["commit"])
    assert record["command"].startswith(("python -m benchmarks", "curvi reproduce"))
    assert {"jax", "numpy", "scipy"} <= set(record["versions"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])


def test_every_experiment_has_its_provenance_and_the_seeds_of_its_rows():
    for text in (RESULTS / "reproduction").rglob("*.md"):
        record = json.loads(text.with_suffix(".provenance.json").read_text())
        assert record["experiment"] == text.stem
        for table in text.parent.glob(f"{text.stem}*.csv"):
            rows = list(csv.DictReader(table.read_text().splitlines()))
            if "seed" in rows[0]:
                assert sorted({int(row["seed"]) for row in rows}) == record["seeds"], table.name


def test_a_record_describes_this_process():
    record = provenance()
    assert record["curvi"] == curvi.__version__
    assert record["versions"]["jax"]
    assert record["command"].startswith("python")
    assert provenance("make it")["command"] == "make it"
    said = sentence({**record, "commit": None, "seeds": [3, 4], "cores": 1, "load": 2.5})
    assert said.endswith(" with seeds 3, 4 on 1 core, load average 2.5.")
    assert not sentence({**record, "load": None}).count("load average")
    assert record["cores"] >= 1


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["/opt/bin/python", "-m", "benchmarks", "rows"], "python -m benchmarks rows"),
        (["python", "/opt/bin/curvi", "data", "--out", "/opt/x"], "curvi data --out x"),
        (["python", "-m", "curvi", "reproduce", "frey"], "curvi reproduce frey"),
        (["python"], "python"),
    ],
)
def test_a_command_is_shown_without_the_paths_of_a_machine(arguments, shown):
    assert command_line(arguments) == shown


def test_a_record_that_is_made_here_names_the_commit_of_this_checkout():
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    asked = ["git", "rev-parse", "HEAD"]
    head = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert PACKAGE.name == "curvi"
    if PACKAGE.is_relative_to(ROOT):
        assert provenance("")["commit"] == head.strip()
