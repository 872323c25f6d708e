"""What README and the manual show runs, and prints what they say it prints."""

import os
import re
import subprocess
import sys
from inspect import ismodule
from pathlib import Path

import pytest

import curvi

pytestmark = pytest.mark.float64_only  # plain JAX settings, in processes of their own
ROOT = Path(__file__).resolve().parent.parent
API = ROOT / "docs" / "api.md"
TRAIN = ("vae.md", "sequences.md")  # pages whose examples train networks
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if "```python" in page.read_text()]


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


def without_times(text: str) -> list[str]:
    return [line for line in text.strip().splitlines() if not line.startswith("method")]


def test_readme_shows_the_example_and_what_it_prints():
    readme = (ROOT / "README.md").read_text()
    code, output = re.search(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", readme, re.DOTALL
    ).groups()
    assert code.strip() == (ROOT / "examples" / "logistic.py").read_text().strip()
    assert without_times(run(code)) == without_times(output)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page.name in TRAIN)) for page in PAGES],
    ids=lambda page: page.name,
)
def test_the_examples_of_a_page_run_and_print_no_false(page):
    """Blocks of a page share their names, like cells; a printed False is a broken promise."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    # Compiling costs more than running here.
    assert "False" not in run("\n".join(blocks), JAX_DISABLE_MOST_OPTIMIZATIONS="1")


def test_the_reliability_page_counts_the_hostile_cases_as_they_are():
    command = "from tests.adversarial.census import table; print(table())"
    page = (ROOT / "docs" / "reliability.md").read_text()
    shown = re.search(r"<!-- begin adversarial -->\n(.*?)\n<!-- end", page, re.DOTALL)[1]
    assert shown == run(command).strip(), "run python docs/regenerate.py reliability"


ONE_PROCESS = (
    "numpyro_model", "pymc_model", "blackjax_nuts", "arviz_export", "optax_equinox", "vae_equinox",
)  # fmt: skip
# The example of README, one that needs flax, and those of tests/sequences/test_policies.py.
ELSEWHERE = ("logistic", "vae_flax", "policy_lqr", "policy_pendulum")


def test_every_example_is_run_by_a_test():
    found = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert found == {*ONE_PROCESS, *ELSEWHERE}


def run_examples(*names: str) -> str:
    """In one process, because importing and compiling costs more than running."""
    code = f"""
import os, runpy, warnings
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
import curvi
# ArviZ announces its next version once a day when it is imported.
warnings.filterwarnings("ignore", category=FutureWarning, module="arviz")
# Two of these posteriors are not Gaussian, and their fits say so.
warnings.filterwarnings("ignore", category=curvi.MisfitWarning)
for name in {names!r}:
    print(name)
    runpy.run_path(f"examples/{{name}}.py")
"""
    return run(code)


def assert_training_helps(printed: str) -> None:
    before, after = re.search(r"([\d.]+) before training, ([\d.]+) after", printed).groups()
    assert float(after) < 0.8 * float(before)


@pytest.mark.slow
def test_the_examples_with_other_libraries_run_and_print_no_false():
    printed = run_examples(*ONE_PROCESS)
    assert "False" not in printed
    assert printed.count("CONVERGED") == 3
    assert_training_helps(printed)


@pytest.mark.slow
def test_the_flax_example_trains_its_network():
    pytest.importorskip("flax", reason="flax is not installed; examples/vae_flax.py needs it")
    assert_training_helps(run_examples("vae_flax"))


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
    listed = re.findall(r"^\.\. (?!automodule)\w+:: (\S+)$", API.read_text(), re.MULTILINE)
    rooms = {name: module for name in curvi.__all__ if ismodule(module := getattr(curvi, name))}
    flat = {name: getattr(curvi, name) for name in curvi.__all__ if name not in rooms}
    public = {f"curvi.{name}" for name in flat if name != "__version__"}
    public |= {
        f"curvi.{room}.{name}"
        for room, module in rooms.items()
        for name in getattr(module, "__all__", ())
        if flat.get(name) is not getattr(module, name)
    }
    assert sorted(listed) == sorted(public)
