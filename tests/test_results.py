"""Recorded results say where they come from, are not outdated, and are what the pages show."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

import curvi
from curvi.reproduction._provenance import command_line, provenance, sentence

pytestmark = pytest.mark.float64_only

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
# Posteriors by NUTS: they measure nothing of curvi.
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


def releases() -> list[str]:
    """Versions in the order of the changelog, the newest first."""
    return re.findall(r"^## \[(\d[\w.]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def releases_behind(version: str, known: list[str]) -> int:
    """How many releases a version is older than the current one."""
    return known.index(version) - known.index(curvi.__version__)


def test_the_pages_show_what_the_results_say(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import regenerate

    outdated = [
        f"{block.name} in {block.page.name}"
        for block in regenerate.measured_blocks()
        if block.shown() != block.text
    ]
    assert outdated == [], "run python docs/regenerate.py results"


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


def test_no_result_is_older_than_the_code_by_more_than_a_release():
    behind = {
        path: releases_behind(found["curvi"], releases()) for path, found in records().items()
    }
    assert {path: count for path, count in behind.items() if count > 1} == {}


def test_releases_are_counted_in_the_order_of_the_changelog():
    known = ["9.0.0", curvi.__version__, "0.0.9", "0.0.8"]
    assert [releases_behind(version, known) for version in known] == [-1, 0, 1, 2]


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
    said = sentence({**record, "commit": None, "seeds": [3, 4], "cores": 1})
    assert said.endswith(" with seeds 3, 4 on 1 core.")
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
