"""The files around the code agree with each other and name no particular machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import curvi
from tests.many_seeds import failing_tests

pytestmark = pytest.mark.float64_only

ROOT = Path(__file__).parents[1]

# Spelt in pieces, so that this file does not find itself.
FORBIDDEN = {
    "a workplace path": re.compile("/" + r"work/|/" + "tmp/venv|/" + r"root/|/home/" + r"\w+/"),
    "a package index": re.compile(r"https?://\S+/" + r"simple\b|--(?:extra-)?index" + "-url"),
}


def machine_traces(text: str) -> list[str]:
    """What in the text belongs to one machine only."""
    return [f"{what}: {hit[0]}" for what, rule in FORBIDDEN.items() for hit in rule.finditer(text)]


def own_files() -> list[Path]:
    """Every file that is, or is about to be, under version control."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("this copy is not a git repository")
    command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_machine_or_a_package_index():
    found = {}
    for path in own_files():
        traces = machine_traces(path.read_bytes().decode("utf-8", errors="ignore"))
        if traces:
            found[str(path.relative_to(ROOT))] = traces
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "cd " + "/".join(["", "work", "main"]),
        "/".join(["", "tmp", "venv"]) + "/bin/python",
        "https://packages.example.org/" + "simple/",
        "pip install --index" + "-url x curvi",
    ],
)
def test_traces_of_a_machine_are_recognised(text):
    assert len(machine_traces(text)) == 1


@pytest.mark.parametrize("text", ["frame/workflow", "https://example.org/simpler", "make run"])
def test_ordinary_text_is_no_trace_of_a_machine(text):
    assert machine_traces(text) == []


def test_the_version_is_the_same_everywhere():
    citation = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    newest = re.search(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert citation is not None
    assert newest is not None
    assert citation[1].strip('"') == newest[1] == curvi.__version__


def test_the_package_takes_its_version_from_the_source():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in settings["project"]
    assert settings["project"]["dynamic"] == ["version"]
    source = ROOT / settings["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{curvi.__version__}"' in source.read_text().splitlines()


def test_the_package_is_marked_as_typed():
    assert (ROOT / "src" / "curvi" / "py.typed").is_file()


def test_the_extra_called_all_holds_every_library_that_a_user_can_add():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for_users = set(extras) - {"all", "browser", "dev", "docs", "test"}
    (everything,) = extras["all"]
    assert set(re.fullmatch(r"curvi\[(.*)\]", everything)[1].split(",")) == for_users


def test_the_check_uses_no_folder_outside_the_repository_but_the_shared_data():
    script = (ROOT / ".ci" / "run").read_text()
    assert set(re.findall(r"\.\./[\w/.]+", script)) == {"../shared/data"}
    assert re.findall(r"(?<![\w.}/!])/[a-z]\w+", script.partition("\n")[2]) == []


def test_workflows_run_make_and_pin_every_action():
    texts = [path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    used = [action for text in texts for action in re.findall(r"uses: (\S+)", text)]
    assert used
    assert [
        action for action in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@v\d[\w.]*", action)
    ] == []
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {name for text in texts for name in re.findall(r"run: make ([\w-]+)", text)}
    assert {"test", "docs"} <= called <= targets


def test_workflows_test_every_version_that_the_classifiers_name():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(settings["project"]["classifiers"]))
    matrix = re.search(r"python: \[(.*)\]", (ROOT / ".github/workflows/test.yml").read_text())
    assert re.findall(r"3\.\d+", matrix[1]) == named


def test_the_files_that_go_first_and_the_rooms_that_run_twice_exist():
    first = re.search(r"LONGEST = \((.*?)\)", (ROOT / "tests/conftest.py").read_text(), re.DOTALL)
    names = re.findall(r'"([^"]+)"', first[1])
    assert names
    assert [name for name in names if not (ROOT / "tests" / name).is_file()] == []
    makefile = (ROOT / "Makefile").read_text()
    rooms = re.search(r"addprefix tests/,(.*?)\)", makefile, re.DOTALL)[1].replace("\\", "").split()
    assert rooms
    assert [room for room in rooms if not (ROOT / "tests" / room).is_dir()] == []


def test_failed_tests_are_read_from_the_report_of_a_run():
    report = "FAILED tests/a.py::f[x - y] - ValueError: 1\nERROR tests/b.py\nSKIPPED [1] c\n"
    assert failing_tests(report) == ["tests/a.py::f[x - y]", "tests/b.py"]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/installation.md"])
def test_every_make_command_in_the_documents_is_a_target(document):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = (ROOT / document).read_text()
    code = "\n".join(
        a or b for a, b in re.findall(r"```\w*\n(.*?)```|`([^`\n]+)`", text, re.DOTALL)
    )
    commands = set(re.findall(r"\bmake ([a-z][\w-]*)", code))
    assert commands
    assert commands <= targets


def test_constraints_are_plain_pins_and_cover_every_core_dependency():
    lines = (ROOT / "constraints.txt").read_text().split()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9.-]+==[\w.]+", line)] == []
    pinned = {line.split("==")[0] for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["test"], *extras["docs"]]
    assert {re.split(r"[<>=]", name)[0] for name in needed} <= pinned
