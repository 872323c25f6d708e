"""The command line: one real fit, and clear sentences instead of tracebacks."""

import json
import os
import subprocess
import sys

import pytest

import curvi
from curvi.cli import main

pytestmark = pytest.mark.float64_only  # plain JAX settings, in a process of its own or none


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"curvi {curvi.__version__}\n"


def test_a_fit_prints_its_verdict_and_writes_what_it_promises(tmp_path):
    """With x64 switched off, as users have it: the command switches it on."""
    folder = tmp_path / "new" / "folder"
    program = "import sys; from curvi.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, "fit", "--out", str(folder), "--seed", "3"],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("JAX_")},
    )
    assert done.returncode == 0
    assert "\nGOOD: The numbers can be used.\n" in done.stdout
    assert done.stderr == ""
    for word in ("ELBO", "worst texture", "direction", "report.html"):
        assert word in done.stdout
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json", "fit.png", "report.html", "report.json", "summary.txt"
    ]  # fmt: skip
    assert (folder / "summary.txt").read_text().startswith("converged\n")
    config = json.loads((folder / "config.json").read_text())
    assert config["seed"] == 3
    assert config["family"] == "auto"
    assert config["out"] == str(folder)
    assert (folder / "fit.png").read_bytes().startswith(b"\x89PNG")


def test_without_arguments_it_says_what_it_can_do(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    for word in ("curvi fit table.csv --target y", "curvi predict", "completion", "--help"):
        assert word in printed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "predict" in capsys.readouterr().out


def test_a_shell_that_is_not_known_is_refused(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.startswith("curvi: completion needs one of bash, zsh, fish")


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


def test_an_output_folder_that_is_a_file_is_refused_before_the_fit(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("")
    assert main(["fit", "--out", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert str(path) in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["fit", "--family", "nonsense"], "nonsense"),
        (["fit", "--seed", "x"], "--seed"),
        (["fit", "--sed", "3"], "--sed"),
        (["data"], "list, path"),
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


COMMANDS = {
    "curvi": [],
    "fit": ["fit"],
    "data": ["data"],
    "data list": ["data", "list"],
    "data path": ["data", "path"],
    "reproduce": ["reproduce"],
    "predict": ["predict"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_a_seed_and_a_folder_for_its_files(name, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*COMMANDS[name], "--help"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert "usage: curvi" in printed
    assert "-h, --help" in printed
    if name in ("fit", "predict", "reproduce"):
        assert f"examples:\n  curvi {name}" in printed
    if name not in ("curvi", "data"):  # these only choose among commands
        assert "--seed INT" in printed
        assert "--out " in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fit", "--seed", "-1"], "curvi: --seed is -1; it must be between 0 and 4294967295\n"),
        (["reproduce", "table1", "--seed", "-1"], "curvi: --seed is -1; it must be between 0 and"),
        (["reproduce", "table1", "--seeds", "0"], "curvi: --seeds is 0; it must be a positive"),
    ],
)
def test_a_bad_seed_ends_with_one_sentence(arguments, sentence, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(sentence)
    assert printed.err.count("\n") == 1
