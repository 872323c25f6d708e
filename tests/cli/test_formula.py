"""``curvi fit table.csv --formula``: what it prints and writes, and what it refuses."""

from __future__ import annotations

import csv

import numpy as np
import pytest

import curvi
from curvi.cli import main
from tests.mixed.tables import table

pytestmark = pytest.mark.float64_only


@pytest.fixture
def path(tmp_path):
    """A table with groups whose names are text."""
    frame = table(np.random.default_rng(0), groups=8, rows=5)
    frame["g"] = frame["g"].str.replace("level", "<b>")
    frame.to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def test_a_formula_is_fitted_reported_and_saved(path, tmp_path, capsys):
    out = tmp_path / "report"
    code = main(
        ["fit", str(path), "--formula", "y ~ x + (1 | g)", "--out", str(out),
         "--save", str(tmp_path / "model")]
    )  # fmt: skip
    assert code == 0
    printed = capsys.readouterr().out
    assert "Fixed effects" in printed
    assert "How much groups differ" in printed
    assert "1 of 1, fixed effects" in printed  # the intercept has no direction of interest
    rows = list(csv.DictReader((out / "groups.csv").read_text().splitlines()))
    assert len(rows) == 8
    page = (out / "report.html").read_text()
    assert "half-normal" in page
    assert "g: Intercept" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    model = curvi.load(tmp_path / "model")
    lines = (out / "estimates.csv").read_text().splitlines()
    estimates = {row["name"]: row for row in csv.DictReader(lines)}
    assert float(estimates["fixed effect x"]["mean"]) == pytest.approx(model.coef_[1], rel=1e-4)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--formula", "y ~ x + (1 | gg)"], "no column 'gg'"),
        (["--formula", "y ~ x"], "no group term"),
        (["--formula", "y ~ x + (1 | g)", "--target", "y"], "--target does not go with"),
        (["--target", "y", "--likelihood", "poisson"], "--likelihood needs --formula"),
        (
            ["--formula", "y ~ x + (1 | g)", "--likelihood", "poisson"],
            "needs counts: whole",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_sentence(path, capsys, options, sentence):
    assert main(["fit", str(path), *options]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_missing_cell_is_refused_with_its_line(path, capsys):
    lines = path.read_text().splitlines()
    lines[3] = ",".join(["NA", *lines[3].split(",")[1:]])
    path.write_text("\n".join(lines))
    assert main(["fit", str(path), "--formula", "y ~ x + (1 | g)"]) == 2
    assert "line 4, column 'y': is NA" in capsys.readouterr().err
