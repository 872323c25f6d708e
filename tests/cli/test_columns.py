"""Tables as people have them: semicolons, decimal commas, text, dates, identifiers, gaps."""

import csv
import io
import json

import numpy as np
import pytest

import curvi
from curvi._core.errors import InputError
from curvi.cli import main
from curvi.cli._encode import prepare
from curvi.datasets._cells import find_separator, read_cells

pytestmark = pytest.mark.float64_only

OPTIONS = {"ignore": (), "separator": "auto", "missing": "refuse"}


def write(path, *, comma, rows=60, gaps=()):
    """The same table with points and commas, or with commas and semicolons."""
    rng = np.random.default_rng(0)
    lines = [["client", "when", "area", "region", "price"]]
    for i in range(rows):
        area, region = rng.normal(90, 30), ("north", "south", "west")[i % 3]
        price = 10 * area + 50 * (region == "south") + rng.normal()
        cells = [f"c{i}", f"{1 + i % 28:02d}.02.2024", f"{area:.2f}", region, f"{price:.2f}"]
        if i in gaps:
            cells[2] = "NA"
        lines.append([c.replace(".", ",") if comma and k in (2, 4) else c
                      for k, c in enumerate(cells)])  # fmt: skip
    between = ";" if comma else ","
    path.write_text("\n".join(between.join(line) for line in lines) + "\n", encoding="utf-8")
    return path


def test_decimal_commas_and_semicolons_are_the_same_table_as_points_and_commas(tmp_path):
    plain = prepare(write(tmp_path / "a.csv", comma=False), "price", **OPTIONS)
    comma = prepare(write(tmp_path / "b.csv", comma=True), "price", **OPTIONS)
    np.testing.assert_array_equal(plain.table.X, comma.table.X)
    assert plain.table.target == comma.table.target
    assert plain.table.names == ("area", "region=south", "region=west")
    assert "decimal commas" in comma.facts["file"]


def test_text_becomes_indicators_against_the_most_frequent_level(tmp_path):
    (tmp_path / "t.csv").write_text("a,c,y\n" + "1,red,2\n2,blue,3.5\n3,red,1\n4,red,2\n" * 3)
    found = prepare(tmp_path / "t.csv", "y", **OPTIONS)
    assert found.table.names == ("a", "c=blue")
    np.testing.assert_array_equal(found.table.X[:4, 1], [0, 1, 0, 0])
    assert "against red" in found.facts["text columns"]


def test_dates_and_identifiers_are_left_out_and_pointed_out(tmp_path):
    found = prepare(write(tmp_path / "t.csv", comma=False), "price", **OPTIONS)
    (note,) = found.notes
    assert "'client' differs in nearly every row" in note
    assert "'when' holds dates" in note


def test_a_column_that_counts_the_rows_is_kept_and_pointed_out(tmp_path):
    rows = "".join(f"{i},{(i * 7) % 5},{(i * 3) % 7 + 0.5}\n" for i in range(1, 41))
    (tmp_path / "t.csv").write_text("nr,x,y\n" + rows)
    found = prepare(tmp_path / "t.csv", "y", **OPTIONS)
    assert found.table.names == ("nr", "x")
    assert "--ignore 'nr'" in found.notes[0]


def test_missing_cells_are_refused_left_out_or_filled_in(tmp_path):
    path = write(tmp_path / "t.csv", comma=True, gaps=(3, 10))
    with pytest.raises(InputError, match=r"line 5, column 'area': is NA.*2 of 60 rows"):
        prepare(path, "price", **OPTIONS)
    dropped = prepare(path, "price", **{**OPTIONS, "missing": "drop"})
    assert dropped.table.X.shape[0] == 58
    filled = prepare(path, "price", **{**OPTIONS, "missing": "mean"})
    known = np.delete(filled.table.X[:, 0], [3, 10])
    np.testing.assert_allclose(filled.table.X[[3, 10], 0], known.mean())
    np.testing.assert_array_equal(dropped.table.X[:, 0], known)


def test_numbers_with_commas_and_with_points_are_refused_together(tmp_path):
    (tmp_path / "t.csv").write_text("a;b;y\n1,5;2.5;3\n2,5;3.5;4\n")
    with pytest.raises(InputError, match=r"commas \(column 'a'\) and with points \(column 'b'\)"):
        read_cells(tmp_path / "t.csv", separator=";")


def test_levels_of_a_text_column_have_the_sds_of_a_full_covariance(tmp_path, capsys):
    """Indicators exclude each other: their sds given the others are a fifth too small."""
    path = write(tmp_path / "t.csv", comma=False)
    assert main(["fit", str(path), "--target", "price", "--no-report", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert "full covariance" in json.dumps(facts)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_separator_is_found_although_cells_quote_others(separator):
    lines = [["a", "b", "c"], ["1", '"x,y;z"', "3"], ["4", '"u;v\t,"', "6"]]
    assert find_separator("\n".join(separator.join(row) for row in lines).encode()) == separator


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model of the table with commas, saved by the command line."""
    folder = tmp_path_factory.mktemp("saved")
    path = write(folder / "t.csv", comma=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["fit", "t.csv", "--target", "price", "--save", "m", "--no-report"]) == 0
    return folder / "m", path


def test_a_saved_model_predicts_a_new_table_as_it_was_fitted(saved, capsys):
    model, path = saved
    assert main(["predict", str(model), str(path)]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    table = prepare(path, "price", **OPTIONS).table
    known = curvi.load(model)
    expected = known.predict(table.X)
    np.testing.assert_allclose([float(r["expected"]) for r in rows], expected, rtol=1e-5)
    low, high = known.predict_interval(table.X)
    np.testing.assert_allclose([float(r["lower"]) for r in rows], low, rtol=1e-5)
    np.testing.assert_allclose([float(r["upper"]) for r in rows], high, rtol=1e-5)


def test_columns_may_stand_in_any_order_and_be_written_otherwise(saved, tmp_path, capsys):
    model, _ = saved
    (tmp_path / "n.csv").write_text("region,area\nsouth,100\nnorth,50.5\n")
    assert main(["predict", str(model), str(tmp_path / "n.csv"), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["expected"] == pytest.approx(1050, abs=2)
    assert second["lower"] < 505 < second["upper"]


BAD = {
    "a level that was not fitted": ("region,area\neast,1\n", "line 2, column 'region': 'east'"),
    "a column that is not there": ("area,x\n1,2\n", "no column 'region'"),
    "text for a number": ("region,area\nsouth,big\n", "line 2, column 'area': 'big' is not a"),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_a_table_that_does_not_fit_the_model_is_refused(saved, tmp_path, capsys, text, words):
    (tmp_path / "n.csv").write_text(text)
    assert main(["predict", str(saved[0]), str(tmp_path / "n.csv")]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.out == ""


def test_classes_are_predicted_with_their_own_names(tmp_path, capsys):
    rows = "".join(f"{x},{'no' if x < 20 else 'yes'}\n" for x in range(40))
    (tmp_path / "t.csv").write_text("x,y\n" + rows)
    assert main(["fit", "t.csv", "--target", "y", "--save", "m", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["level"] == "good"
    assert main(["predict", "m", "t.csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "prediction,P(no),P(yes)"
    assert lines[1].startswith("no,")
    assert lines[-1].startswith("yes,")


def test_a_mixed_model_predicts_known_and_unknown_groups(tmp_path, capsys):
    rng = np.random.default_rng(1)
    effects = rng.normal(size=6)
    lines = [f"g{g},{x},{2 * x + effects[g] + 0.1 * rng.normal():.4f}"
             for g in range(6) for x in range(5)]  # fmt: skip
    (tmp_path / "t.csv").write_text("g,x,y\n" + "\n".join(lines) + "\n")
    formula = ["--formula", "y ~ x + (1 | g)"]
    assert main(["fit", "t.csv", *formula, "--save", "m", "--no-report"]) == 0
    (tmp_path / "n.csv").write_text("g,x\ng0,2\nnew,2\n")
    capsys.readouterr()
    assert main(["predict", "m", "n.csv"]) == 0
    known, new = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert float(known["expected"]) == pytest.approx(4 + effects[0], abs=0.3)
    widths = [float(r["upper"]) - float(r["lower"]) for r in (known, new)]
    assert widths[1] > 3 * widths[0]


def test_a_correlated_table_gets_intervals_of_a_full_covariance(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    other = x + 0.1 * rng.normal(size=200)
    y = x + other + rng.normal(size=200)
    rows = "\n".join(f"{a:.5f},{b:.5f},{c:.5f}" for a, b, c in zip(x, other, y, strict=True))
    (tmp_path / "t.csv").write_text("a,b,y\n" + rows + "\n")
    assert main(["fit", "t.csv", "--target", "y", "--json", "--no-report"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "full covariance" in found["parts"]["model"]["What was fitted"]["posterior"]
    assert main(["fit", "t.csv", "--target", "y", "--family", "mean-field", "--json"]) == 0
    narrow = json.loads(capsys.readouterr().out)
    assert narrow["verdict"]["level"] == "caution"
    assert "too narrow" in narrow["verdict"]["headline"]
    (wide,), (thin,) = (f["parts"]["estimates"].values() for f in (found, narrow))
    assert wide[0]["sd"] > 3 * thin[0]["sd"]
