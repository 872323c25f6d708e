"""What README and the manual show runs, and prints what they say it prints."""

import functools
import importlib
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from inspect import ismodule
from pathlib import Path

import pytest

import curvi

pytestmark = pytest.mark.float64_only  # plain JAX settings, in processes of their own
ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
TRAIN = ("vae.md", "sequences.md", "autoencoders.md")  # pages whose examples train networks


def run(code: str, **settings: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")} | settings
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def names_of_pages() -> list[str]:
    sys.path.insert(0, str(DOCS))
    from pages import pages

    sys.path.remove(str(DOCS))
    return [str(page.relative_to(DOCS)) for page in pages()]


PAGES = names_of_pages()


def group_of(*, train: bool) -> tuple[str, ...]:
    """Pages that are run together; README is one of those that are quick."""
    found = tuple(name for name in PAGES if (Path(name).name in TRAIN) == train)
    return found if train else ("../README.md", *found)


@pytest.fixture(scope="module")
def printed():
    """What pages print, each group of them run once: importing and compiling costs the most."""

    @functools.cache
    def of_pages(names: tuple[str, ...]) -> dict[str, list[str]]:
        code = f"import sys; sys.path.insert(0, {str(DOCS)!r}); import json, pages\n"
        code += f"found = {{name: pages.outputs(pages.DOCS / name) for name in {names!r}}}\n"
        return json.loads(
            run(code + "print(json.dumps(found))", JAX_DISABLE_MOST_OPTIMIZATIONS="1")
        )

    return of_pages


def test_the_examples_of_readme_print_what_it_shows(printed):
    from pages import differences, shown

    readme = shown(ROOT / "README.md")
    assert len(readme) == 4  # one for every kind of user
    assert differences(readme, printed(group_of(train=False))["../README.md"]) == []


@pytest.mark.parametrize(
    "page",
    [pytest.param(name, marks=[pytest.mark.slow] * (Path(name).name in TRAIN)) for name in PAGES],
)
def test_the_examples_of_a_page_print_what_it_shows(page, printed):
    from pages import differences, shown

    group = group_of(train=Path(page).name in TRAIN)
    assert differences(shown(DOCS / page), printed(group)[page]) == []


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ("mean 1.00 sd 2", "mean 1.02 sd 2.1", True),
        ("mean 1.00", "mean 1.30", False),
        ("mean 1.00", "median 1.00", False),
        ("converged", "", False),
        ("method A, 3 steps, 0.1 s", "method A, 4 steps, 9.0 s", True),
    ],
)
def test_outputs_are_compared_up_to_the_digits_of_a_machine(left, right, equal):
    from pages import same

    assert same(left, right) is equal


def test_the_reliability_page_counts_the_hostile_cases_as_they_are():
    command = "from tests.adversarial.census import table; print(table())"
    page = (ROOT / "docs" / "reliability.md").read_text()
    shown = re.search(r"<!-- begin adversarial -->\n(.*?)\n<!-- end", page, re.DOTALL)[1]
    assert shown == run(command).strip(), "run python docs/regenerate.py reliability"


# What draws a figure of the manual, and two that it does not execute: flax, and minutes.
NOT_IN_THE_GALLERY = {"logistic", "vae_flax", "policy_pendulum"}
GALLERY = [path for path in sorted(EXAMPLES.rglob("*.py")) if path.stem not in NOT_IN_THE_GALLERY]


def test_the_gallery_executes_every_other_example():
    pattern = re.search(r'"ignore_pattern": r"(.*)",', (DOCS / "conf.py").read_text())[1]
    left_out = {path.stem for path in EXAMPLES.rglob("*.py") if re.search(pattern, str(path))}
    assert left_out == NOT_IN_THE_GALLERY
    assert len(GALLERY) >= 10


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_an_example_has_a_title_and_prints_no_comparison(path):
    source = path.read_text()
    title, line, blank = source.splitlines()[1:4]
    assert len(line) >= len(title)
    assert set(line) == {"="}
    assert blank == ""
    assert re.findall(r"print\([^f\"]*[<>]=? ", source) == []


@pytest.mark.slow
@pytest.mark.parametrize("folder", sorted({path.parent.name for path in GALLERY}))
def test_the_examples_of_a_folder_run(folder):
    """In one process, because importing and compiling costs more than running."""
    names = [str(path) for path in GALLERY if path.parent.name == folder]
    code = f"""
import runpy, warnings
import matplotlib
matplotlib.use("agg")
# Other libraries announce their next versions to each other; warnings of curvi are errors.
for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
    warnings.simplefilter("ignore", category)
for name in {names!r}:
    runpy.run_path(name, run_name="__main__")
"""
    run(code)


@pytest.mark.slow
def test_the_flax_example_trains_its_network():
    pytest.importorskip(
        "flax", reason="flax is not installed; examples/images/vae_flax.py needs it"
    )
    printed = run(f"import runpy; runpy.run_path({str(EXAMPLES / 'images' / 'vae_flax.py')!r})")
    before, after = re.search(r"([\d.]+) before training, ([\d.]+) after", printed).groups()
    assert float(after) < 0.8 * float(before)


def test_doctests_of_the_library_pass():
    code = """
import doctest, importlib, pkgutil, curvi
tried = failed = 0
for found in pkgutil.walk_packages(curvi.__path__, "curvi."):
    result = doctest.testmod(importlib.import_module(found.name))
    tried, failed = tried + result.attempted, failed + result.failed
assert not failed and tried > 20, (tried, failed)
"""
    run(code, JAX_DISABLE_MOST_OPTIMIZATIONS="1")  # compiling costs more than running here


def test_the_reference_lists_exactly_the_public_names():
    """Directly under curvi where a name is there, otherwise under its room, and once only."""
    listed = public_names()
    rooms = {name: module for name in curvi.__all__ if ismodule(module := getattr(curvi, name))}
    flat = {name: getattr(curvi, name) for name in curvi.__all__ if name not in rooms}
    public = {f"curvi.{name}" for name in flat if name != "__version__"}
    paper = rooms.pop("paper")  # holds rooms
    for room in pkgutil.iter_modules(paper.__path__):
        rooms[f"paper.{room.name}"] = importlib.import_module(f"curvi.paper.{room.name}")
    public |= {
        f"curvi.{room}.{name}"
        for room, module in rooms.items()
        for name in getattr(module, "__all__", ())
        if flat.get(name) is not getattr(module, name)
    }
    assert sorted(listed) == sorted(public)


def public_names() -> list[str]:
    return re.findall(r"^   (curvi\.\S+)$", (DOCS / "api.md").read_text(), re.MULTILINE)


@pytest.mark.slow
def test_the_manual_builds_without_a_warning_and_has_a_page_for_every_public_name(tmp_path):
    """Examples are not executed here: ``make docs`` does that."""
    pytest.importorskip("sphinx_gallery", reason="needs the docs extra")
    source = tmp_path / "docs"
    ignored = shutil.ignore_patterns("_build", "gallery", "api", "__pycache__")
    shutil.copytree(DOCS, source, ignore=ignored)
    for name in ("examples", "CHANGELOG.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    built = tmp_path / "html"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going"]
    # Pictures of the gallery, which some pages show, are missing without it.
    command += ["-D", "plot_gallery=0", "-D", "suppress_warnings=ref.python,image.not_readable"
                ",autosummary.import_cycle"]  # fmt: skip
    subprocess.run([*command, str(source), str(built)], check=True)
    pages = {name: built / "api" / f"{name}.html" for name in public_names()}
    assert [name for name, page in pages.items() if not page.exists()] == []
    noise = re.compile(r"jaxlib|jaxtyping|Alias for field number|site-packages")
    assert [name for name, page in pages.items() if noise.search(page.read_text())] == []
    assert "https://cdn" not in (built / "mathematics.html").read_text()
    assert "<math" in (built / "mathematics.html").read_text()
