"""``curvi fit table.csv``: what it prints and writes, and what it refuses."""

import csv
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import curvi
from curvi._core.errors import InputError
from curvi.cli import main
from curvi.cli._stream import is_long
from curvi.cli._table import choose_model, responses

pytestmark = pytest.mark.float64_only

HOSTILE = "income & <script>"


def write_csv(path, y, features=3, rows=60):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, features)) * 10.0 ** np.arange(features)
    names = [HOSTILE, *(f"x{i}" for i in range(1, features))]
    lines = [",".join([*names, "y"])]
    lines += [",".join([*(f"{v:.6g}" for v in row), str(y(row, rng))]) for row in X]
    path.write_text("\n".join(lines) + "\n")
    return path


TARGETS = {
    "two texts": (lambda row, rng: "yes" if row[0] + rng.normal() > 0 else "no", "logistic", 3),
    "three integers": (lambda row, rng: rng.integers(0, 3), "logistic", 9),
    "reals": (lambda row, rng: row[0] + rng.normal(), "linear", 3),
}


@pytest.mark.parametrize(("y", "model", "lines"), TARGETS.values(), ids=TARGETS)
def test_a_table_is_fitted_by_the_model_its_target_suggests(tmp_path, capsys, y, model, lines):
    path = write_csv(tmp_path / "table.csv", y)
    assert main(["fit", str(path), "--target", "y"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "\nGOOD: The numbers can be used.\n" in printed.out
    assert re.search(rf"\nmodel +{model} ", printed.out)
    assert re.search(r"\nbound \(ELBO\) +-", printed.out)
    names = ("income", "x1", "x2")
    assert sum(line.strip().startswith(names) for line in printed.out.splitlines()) == lines
    assert sorted(p.name for p in path.parent.iterdir() if p.name != path.name) == [
        "curvi-report.html", "curvi-report.json",
    ]  # fmt: skip


def test_counts_are_fitted_when_named(tmp_path, capsys):
    path = write_csv(tmp_path / "table.csv", lambda row, rng: rng.poisson(np.exp(1 + row[0])))
    assert main(["fit", str(path), "--target", "y"]) == 2
    assert "--model poisson" in capsys.readouterr().err
    assert main(["fit", str(path), "--target", "y", "--model", "poisson"]) == 0
    assert re.search("model +poisson .chosen.", capsys.readouterr().out)


class Outline(HTMLParser):
    """The tags of a page, its text, and everything it refers to."""

    def __init__(self):
        super().__init__()
        self.tags, self.words, self.references = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.words.append(data)


def test_the_files_agree_with_the_fit_and_the_page_stands_alone(tmp_path, capsys):
    path = write_csv(tmp_path / "table.csv", TARGETS["two texts"][0])
    folder = tmp_path / "new" / "out"
    command = ["fit", str(path), "--target", "y", "--prior", "ard", "--out", str(folder)]
    assert main([*command, "--seed", "7"]) == 0
    printed = capsys.readouterr().out
    assert sorted(p.name for p in folder.iterdir()) == [
        "coefficients.csv", "coefficients.png", "config.json", "report.html", "report.json",
    ]  # fmt: skip
    rows = list(csv.DictReader((folder / "coefficients.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == [HOSTILE, "x1", "x2", "intercept"]
    assert rows[0]["selected"] == "yes"
    assert float(rows[0]["mean"]) > 2 * float(rows[0]["sd"]) > 0
    assert "income & <script>" in printed
    assert json.loads((folder / "config.json").read_text())["seed"] == 7
    assert (folder / "coefficients.png").read_bytes().startswith(b"\x89PNG")
    page = Outline()
    page.feed((folder / "report.html").read_text())
    assert page.tags.count("script") == 1  # our own
    assert HOSTILE in page.words
    assert page.references == ["#parts"]
    assert str(tmp_path) not in (folder / "report.html").read_text()
    numbers = json.loads((folder / "report.json").read_text())
    (effects,) = numbers["parts"]["estimates"].values()
    assert effects[0]["name"] == HOSTILE
    assert effects[0]["mean"] / effects[0]["sd"] == pytest.approx(
        float(rows[0]["mean"]) / float(rows[0]["sd"]), rel=1e-3
    )


def test_the_same_seed_gives_the_same_files(tmp_path, capsys):
    path = write_csv(tmp_path / "table.csv", TARGETS["two texts"][0])
    texts = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        main(["fit", str(path), "--target", "y", "--prior", "ard", "--out", str(folder)])
        texts.append((folder / "coefficients.csv").read_text())
    assert texts[0] == texts[1]


REFUSED = {
    "missing file": ("nope.csv", "", ["--target", "y"], "cannot be read (No such file or dir"),
    "no target": ("t.csv", "a,y\n1,2\n", [], "--target is missing"),
    "unknown target": ("t.csv", "a,y\n1,2\n", ["--target", "z"], "the columns of"),
    "unknown column": ("t.csv", "a,y\n1,2\n", ["--target", "y", "--ignore", "b"], "--ignore is"),
    "text": ("t.csv", "a,y\n1,2\nred,3\n", ["--target", "y"], "line 3, column 'a': 'red' is not"),
    "one class": ("t.csv", "a,y\n1,2\n2,2\n", ["--target", "y"], "in every row"),
    "one row": ("t.csv", "a,y\n1,2\n", ["--target", "y", "--model", "logistic"], "in every row"),
    "text for numbers": (
        "t.csv",
        "a,y\n1,u\n2,v\n",
        ["--target", "y", "--model", "linear"],
        "target 'y' is 'u' in line 2; a linear model needs numbers",
    ),
    "negative counts": (
        "t.csv",
        "a,y\n1,-1\n2,4\n3,5\n",
        ["--target", "y", "--model", "poisson"],
        "",
    ),
}


@pytest.mark.parametrize(("name", "text", "options", "words"), REFUSED.values(), ids=REFUSED)
def test_a_bad_table_ends_with_one_sentence(tmp_path, capsys, name, text, options, words):
    (tmp_path / "t.csv").write_text(text)
    assert main(["fit", str(tmp_path / name), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("curvi: ")
    assert words in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("option", ["--target=y", "--model=linear", "--prior=ard", "--ignore=a"])
def test_options_of_tables_are_refused_without_a_table(option, capsys):
    assert main(["fit", option]) == 2
    assert "needs a table" in capsys.readouterr().err


CHOICES = {
    ("0", "1"): "logistic",
    ("2.5", "3.5"): "logistic",
    ("a", "b", "c"): "logistic",
    ("1", "2", "3", "2.0"): "logistic",
    ("1", "2", "3.5"): "linear",
    ("1e3", "2", "3"): "linear",
}


@pytest.mark.parametrize(("labels", "model"), CHOICES.items(), ids=map(str, CHOICES))
def test_the_model_follows_the_values_of_the_target(labels, model):
    assert choose_model(labels, "y")[0] == model


def test_a_target_that_decides_nothing_is_refused():
    with pytest.raises(InputError, match="target 'y' has 11 different integers"):
        choose_model(tuple(map(str, range(11))), "y")


def test_ten_thousand_texts_are_no_classes():
    with pytest.raises(InputError, match="10000 different values"):
        responses(tuple(f"row {i}" for i in range(10_000)), "y", "logistic")


def test_a_fit_of_a_table_keeps_its_state_and_its_result(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("a,y\n1,2\n2,4.5\n3,5.5\n4,8.5\n5,9.5\n", encoding="utf-8")
    kept, saved = tmp_path / "state", tmp_path / "result"
    command = ["fit", str(tmp_path / "t.csv"), "--target", "y", "--checkpoint", str(kept)]
    assert main([*command, "--save", str(saved)]) == 0
    model = curvi.load(saved)
    assert model.predict([[6.0]])[0] == pytest.approx(11.5, abs=1.5)
    assert main([*command, "--save", str(saved), "--overwrite"]) == 0
    assert curvi.load(saved).coef_.tobytes() == model.coef_.tobytes()
    assert main([*command, "--seed", "1"]) == 2
    assert "another call: random_state was 0, and is 1 now" in capsys.readouterr().err


def test_a_parquet_file_is_fitted_in_blocks_like_its_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("curvi.cli._stream.SMALL", 0)
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    generator = np.random.default_rng(1)
    x = generator.normal(size=80)
    y = (x > generator.normal(size=80)).astype(int)
    table = pyarrow.table({"x": x, "other": x**2, "y": y, "id": np.arange(80)})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=30)
    saved = tmp_path / "saved"
    command = ["fit", str(tmp_path / "t.parquet"), "--target", "y", "--ignore", "id"]
    assert main([*command, "--save", str(saved), "--out", str(tmp_path / "out")]) == 0
    assert "read in blocks" in capsys.readouterr().out
    whole = curvi.BayesianLogisticRegression(random_state=0).fit(np.column_stack([x, x**2]), y)
    assert np.allclose(curvi.load(saved).coef_, whole.coef_, atol=1e-6)
    assert main(["predict", str(saved), str(tmp_path / "t.parquet")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 81
    text = table.append_column("word", pyarrow.array(["a", "b"] * 40))
    parquet.write_table(text, tmp_path / "text.parquet")
    assert main(["fit", str(tmp_path / "text.parquet"), "--target", "y"]) == 2
    assert "--ignore" in capsys.readouterr().err
    assert main(["fit", str(tmp_path / "t.parquet"), "--target", "nothing"]) == 2
    assert "no column 'nothing'" in capsys.readouterr().err
    monkeypatch.setattr("curvi.cli._stream.shared_mesh", lambda: "a mesh")
    assert main(command) == 2
    assert "leave 'curvi launch' out" in capsys.readouterr().err


def test_the_length_of_a_parquet_file_is_that_of_what_it_unpacks_to(tmp_path, monkeypatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"x": np.zeros(20_000), "y": np.zeros(20_000)})
    parquet.write_table(table, tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < 10_000
    for limit, long in ((300_000, True), (400_000, False)):
        monkeypatch.setattr("curvi.cli._stream.SMALL", limit)
        assert is_long(tmp_path / "t.parquet") is long


def test_a_short_parquet_file_is_a_table_like_any_other(tmp_path, capsys):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    generator = np.random.default_rng(0)
    group, x = generator.integers(0, 5, 60), generator.normal(size=60)
    columns = {
        "y": x + group + generator.normal(size=60),
        "x": x,
        "g": np.asarray(list("abcde"))[group],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    file = str(tmp_path / "t.parquet")
    assert main(["fit", file, "--target", "y", "--no-report"]) == 0
    assert "g=" in capsys.readouterr().out  # text becomes indicators
    assert main(["fit", file, "--formula", "y ~ x + (1 | g)", "--no-report"]) in (0, 1)
    assert "sd" in capsys.readouterr().out
