"""The command line: one real fit, and clear sentences instead of tracebacks."""

import json

import jax
import pytest

from curvi.cli import main


def test_a_fit_prints_its_verdict_and_writes_what_it_promises(tmp_path, capsys):
    """With x64 switched off, as users have it: the command switches it on."""
    folder = tmp_path / "new" / "folder"
    with jax.enable_x64(False):
        assert main(["fit", "--out", str(folder), "--seed", "3"]) == 0
    printed = capsys.readouterr()
    # Mean field cannot follow the correlations of these features, and the verdict says so.
    assert printed.out.startswith("converged, with warnings\n")
    assert "q does not match the target" in printed.out
    assert printed.err == ""
    for word in ("ELBO", "mean radius", "intercept", "config.json"):
        assert word in printed.out
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json", "fit.png", "summary.txt"
    ]  # fmt: skip
    assert printed.out.startswith((folder / "summary.txt").read_text())
    config = json.loads((folder / "config.json").read_text())
    assert config["seed"] == 3
    assert config["family"] == "mean-field"
    assert (folder / "fit.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.float64_only
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--prior-scale", "-1"], "curvi: --prior-scale is -1.0; it must be positive and finite\n"),
        (["--family", "low-rank", "--rank", "0"], "curvi: rank is 0; it must be a positive "),
        (["--family", "low-rank", "--rank", "99"], "curvi: rank is 99 but the position has 31 "),
    ],
)
def test_a_bad_value_ends_with_one_sentence(arguments, sentence, capsys):
    assert main(["fit", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(sentence)
    assert printed.err.count("\n") == 1


@pytest.mark.float64_only
def test_an_output_folder_that_is_a_file_is_refused_before_the_fit(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("")
    assert main(["fit", "--out", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert str(path) in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.float64_only
@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["fit", "--family", "nonsense"], "nonsense"),
        (["fit", "--seed", "x"], "--seed"),
        (["fit", "--sed", "3"], "--sed"),
        (["data"], "list, path"),
        ([], "fit"),
    ],
)
def test_what_cannot_be_parsed_ends_with_its_reason(arguments, word, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert word in printed.err
    assert printed.err.startswith("curvi: ")
    assert printed.err.count("\n") == 1
    assert "--help" in printed.err


@pytest.mark.float64_only
@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["fit", "--help"], ["data", "path", "--help"], ["reproduce", "--help"]],
)
def test_help_is_offered_everywhere(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert "usage: curvi" in printed
    assert "-h, --help" in printed
