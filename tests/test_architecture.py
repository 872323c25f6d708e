"""The rules of the source tree, checked on its syntax, and the proof that each rule bites."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.float64_only

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "curvi"

# A room imports only itself and rooms that come before it: the kernel, then the slices, then the
# edges.
STAGES = (
    "_core", "io", "report", "linalg", "likelihoods", "targets", "families", "objective",
    "paper.reference", "paper.concentration", "solvers", "engine", "plots", "diagnostics",
    "inference", "latent", "glm", "mixed", "vae", "sequences",
    "interop", "datasets", "paper.experiments", "cli",
)  # fmt: skip
# Methods of a result and of a mixed model export it to other libraries: imports inside functions.
LATE = {("diagnostics", "interop"), ("latent", "interop"), ("mixed", "interop")}
# Loading with any of these can run code from a file.
UNSAFE_MODULES = {
    "pickle", "cPickle", "_pickle", "dill", "joblib", "cloudpickle", "shelve", "marshal",
}  # fmt: skip
NOT_AT_IMPORT = (
    "arviz", "blackjax", "matplotlib", "numpyro", "pymc", "rich", "scipy.stats", "sklearn", "tyro",
)  # fmt: skip
MAX_LINES = 400
FACADE = "the facade"
# Names that more than one class has. A name that is said twice needs its room to be understood.
MOST_REPEATED_CLASS_NAMES = 34
# Pages whose paths must exist, where a path without a root is below src/curvi.
PAGES_WITH_PATHS = ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/decisions/*.md")


def stage_of(parts: tuple[str, ...]) -> str:
    """The stage of a dotted path below curvi; anything directly in curvi is the facade."""
    for length in (1, 2):
        if (stage := ".".join(parts[:length])) in STAGES:
            return stage
    return FACADE


def dotted(node: ast.AST) -> str:
    """`a.b.c` for a chain of attributes on a name, otherwise the empty string."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def imported_modules(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Every module that the file can import, as (line, absolute dotted name).

    Imports inside functions and under TYPE_CHECKING count. `from a import b` yields `a.b`, since b
    may be a module. `package` is the dotted path of the package that holds the file.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                yield node.lineno, ".".join((*base, alias.name))
        elif isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] in (
            "import_module",
            "__import__",
        ):
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                level = len(name.value) - len(name.value.lstrip("."))
                above = package[: len(package) - level + 1] if level else ()
                yield node.lineno, ".".join((*above, *filter(None, name.value.split("."))))


def check_imports(tree: ast.Module, relative: Path) -> Iterator[tuple[int, str]]:
    inside = relative.with_suffix("").parts
    here = stage_of(inside)
    if len(relative.parts) > 1 and here == FACADE and inside != ("paper", "__init__"):
        yield 1, f"the folder {relative.parts[0]} is not a stage"
    inner = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for line, name in imported_modules(tree, ("curvi", *inside[:-1])):
        root, *rest = name.split(".")
        if root in UNSAFE_MODULES:
            yield line, f"imports {root}, which can run code from a file"
        if name.startswith("jax.config"):
            yield line, "imports the global configuration of JAX"
        if root != "curvi" or here == FACADE:
            continue
        there = stage_of(tuple(rest))
        if (here, there) in LATE and line in inner:
            continue
        if there == FACADE or STAGES.index(there) > STAGES.index(here):
            yield line, f"{here} imports {name}: {there} is not above {here}"


def check_calls(tree: ast.Module, relative: Path) -> Iterator[tuple[int, str]]:
    may_print = stage_of(relative.with_suffix("").parts) == "cli"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(dotted(target).startswith("jax.config.") for target in targets):
                yield node.lineno, "sets the global configuration of JAX"
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        if name in ("eval", "exec", "builtins.eval", "builtins.exec"):
            yield node.lineno, f"calls {name}"
        if name == "print" and not may_print:
            yield node.lineno, "prints outside the command line"
        touched = dotted(node.args[0]) if name == "setattr" and node.args else name
        if touched in ("jax.config", "jax.config.update"):
            yield node.lineno, "sets the global configuration of JAX"
        for keyword in node.keywords:
            is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            if keyword.arg == "allow_pickle" and not is_false:
                yield node.lineno, "allows pickle"


def check_docstrings(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[int, str]]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        marks = {dotted(mark).split(".")[-1] for mark in node.decorator_list}
        if node.name.startswith("_") or marks & {"overload", "override", "setter"}:
            continue
        if not ast.get_docstring(node):
            yield node.lineno, f"{owner}{node.name} has no docstring"
        if isinstance(node, ast.ClassDef):
            yield from check_docstrings(node.body, f"{node.name}.")


def check_file(path: Path, root: Path) -> list[str]:
    """Every broken rule of one file, as `path:line: what`."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    relative = path.relative_to(root)
    found = [
        *check_imports(tree, relative),
        *check_calls(tree, relative),
        *check_docstrings(tree.body),
    ]
    if (length := len(text.splitlines())) > MAX_LINES:
        found.append((length, f"has {length} lines; {MAX_LINES} at most"))
    return [f"{relative.as_posix()}:{line}: {what}" for line, what in found]


def check_tree(root: Path) -> list[str]:
    """Every broken rule of every Python file below root, a package called curvi."""
    return [problem for path in sorted(root.rglob("*.py")) for problem in check_file(path, root)]


def imports_of(root: Path) -> dict[str, set[str]]:
    """The rooms that each room imports, in the order of the rooms; inside functions too."""
    rooms: dict[str, set[str]] = {stage: set() for stage in STAGES}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).with_suffix("").parts
        here = stage_of(inside)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for _, name in imported_modules(tree, ("curvi", *inside[:-1])):
            there = stage_of(tuple(name.split(".")[1:])) if name.startswith("curvi.") else FACADE
            if FACADE not in (here, there) and there != here:
                rooms[here].add(there)
    return rooms


def table_of_rooms(root: Path = SOURCE) -> str:
    """What every room holds, and the rooms that it builds on without a detour over another."""
    imports = imports_of(root)
    later = {room: {to for to in rooms if (room, to) in LATE} for room, rooms in imports.items()}
    below: dict[str, set[str]] = {}  # all that a room can reach
    lines = ["| room | holds | builds on |", "|---|---|---|"]
    for room in STAGES:
        direct = imports[room] - later[room]
        below[room] = direct.union(*(below[other] for other in direct))
        nearest = [to for to in STAGES if to in direct and all(to not in below[o] for o in direct)]
        nearest += [f"{to} (inside methods)" for to in STAGES if to in later[room]]
        package = (root / Path(*room.split(".")) / "__init__.py").read_text(encoding="utf-8")
        holds = (ast.get_docstring(ast.parse(package)) or "").split("\n")[0].rstrip(".")
        holds = holds.replace("``", "`")
        lines.append(f"| `{room}` | {holds} | {', '.join(nearest)} |")
    return "\n".join(lines)


def repeated_class_names(root: Path) -> dict[str, list[str]]:
    """The files of every name that several classes have; a leading underscore is no difference."""
    places = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(path.relative_to(root).as_posix())
    return {name: files for name, files in sorted(places.items()) if len(files) > 1}


def missing_paths(page: Path, root: Path) -> list[str]:
    """Paths of Python files, pages and folders that a page names and the tree does not have."""
    named = re.findall(r"`([\w.*-]+(?:/[\w.*-]+)*/?)`", page.read_text(encoding="utf-8"))
    paths = [name for name in named if name.endswith((".py", ".md", ".html", "/"))]
    own = [name for name in paths if "/" in name and "NAME" not in name and "NNNN" not in name]
    return [
        name
        for name in own
        if not any(
            (folder / name).exists() for folder in (root, root / "src", root / "src" / "curvi")
        )
    ]


def test_the_source_tree_keeps_its_rules():
    assert check_tree(SOURCE) == []


def test_the_page_of_the_architecture_shows_the_rooms_as_they_are():
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- begin rooms -->\n(.*?)\n<!-- end", page, re.DOTALL)[1]
    assert shown == table_of_rooms(), "run python docs/regenerate.py rooms"


def test_the_page_of_the_architecture_is_two_screens():
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(page.split()) <= 1500


@pytest.mark.parametrize(
    "page", [path for pattern in PAGES_WITH_PATHS for path in sorted(ROOT.glob(pattern))],
    ids=lambda path: path.stem,
)  # fmt: skip
def test_every_path_that_a_page_names_exists(page):
    assert missing_paths(page, ROOT) == []


def test_fewer_and_fewer_classes_share_a_name():
    repeated = repeated_class_names(SOURCE)
    assert len(repeated) <= MOST_REPEATED_CLASS_NAMES, repeated


def test_rooms_names_and_paths_are_read_as_they_are(tmp_path):
    for stage in STAGES:
        folder = tmp_path / "src" / "curvi" / Path(*stage.split("."))
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(f'"""Of {stage}."""\n', encoding="utf-8")
    source = tmp_path / "src" / "curvi"
    (source / "linalg" / "a.py").write_text("from curvi._core import x\nclass _A: ...\n")
    (source / "mixed" / "a.py").write_text(
        "from curvi._core import x\nfrom ..linalg import y\nclass A: ...\nclass B: ...\n"
        "def f():\n    import curvi.interop\n"
    )
    assert "| `linalg` | Of linalg | _core |" in table_of_rooms(source)
    assert "| `mixed` | Of mixed | linalg, interop (inside methods) |" in table_of_rooms(source)
    assert repeated_class_names(source) == {"A": ["linalg/a.py", "mixed/a.py"]}
    page = tmp_path / "page.md"
    page.write_text(
        "`linalg/a.py`, `linalg/b.py`, `src/curvi/mixed/`, `tests/x/`, `solvers/_NAME.py`"
    )
    assert missing_paths(page, tmp_path) == ["linalg/b.py", "tests/x/"]


def test_importing_curvi_stays_light():
    program = f"import sys, curvi; print(*[m for m in {NOT_AT_IMPORT!r} if m in sys.modules])"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


PLANTED = {
    "import of a later stage": (
        "_core/a.py",
        "from curvi.families import MeanField",
        "_core imports",
    ),
    "absolute import": ("_core/a.py", "import curvi.cli.main", "_core imports"),
    "stage as a name": ("_core/a.py", "from curvi import inference", "_core imports"),
    "relative import": ("_core/a.py", "from ..targets import Target", "_core imports"),
    "relative stage as a name": ("_core/a.py", "from .. import targets", "_core imports"),
    "relative from a package": ("_core/__init__.py", "from ..targets import x", "_core imports"),
    "relative from a deep file": ("_core/b/a.py", "from ...targets.c import x", "_core imports"),
    "import in a function": ("_core/a.py", "def _f():\n    from curvi import cli", "_core imports"),
    "import for types only": (
        "_core/a.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from curvi.cli import x",
        "_core imports",
    ),
    "interop at import time": (
        "diagnostics/a.py",
        "from curvi.interop import to_arviz",
        "diagnostics imports",
    ),
    "import by name": ("_core/a.py", "import_module('curvi.cli')", "_core imports"),
    "import by relative name": ("_core/a.py", "x.import_module('..cli', 'y')", "_core imports"),
    "import of the facade": ("cli/a.py", "import curvi", "cli imports"),
    "function of the facade": ("cli/a.py", "from curvi import fit", "cli imports"),
    "stage in one file": ("plots.py", "from curvi.cli import main", "plots imports"),
    "folder without a stage": ("helpers/a.py", "x = 1", "not a stage"),
    "pickle": ("_core/a.py", "import pickle", "imports pickle"),
    "part of a pickle": ("_core/a.py", "from joblib.externals import loky", "imports joblib"),
    "pickle in the facade": ("__init__.py", "def _f():\n    import dill", "imports dill"),
    "eval": ("_core/a.py", "x = eval('1')", "calls eval"),
    "exec": ("_core/a.py", "exec('x = 1')", "calls exec"),
    "pickle in arrays": ("_core/a.py", "np.load(p, allow_pickle=True)", "allows pickle"),
    "pickle by variable": ("_core/a.py", "np.load(p, allow_pickle=flag)", "allows pickle"),
    "print": ("_core/a.py", "print('x')", "prints"),
    "print in the facade": ("__init__.py", "print('x')", "prints"),
    "JAX update": ("_core/a.py", "jax.config.update('jax_enable_x64', True)", "sets the global"),
    "JAX assignment": ("_core/a.py", "jax.config.jax_enable_x64 = True", "sets the global"),
    "JAX setattr": ("_core/a.py", "setattr(jax.config, name, True)", "sets the global"),
    "JAX configuration": ("_core/a.py", "from jax import config", "imports the global"),
    "long file": ("_core/a.py", "x = 1\n" * (MAX_LINES + 1), "401 lines"),
    "bare function": ("_core/a.py", "def f():\n    return 1", "f has no docstring"),
    "bare class": ("_core/a.py", "class A:\n    x = 1", "A has no docstring"),
    "bare method": ("_core/a.py", "class A:\n    '''A.'''\n    def f(self): ...", "A.f has no"),
}

ALLOWED = {
    "an earlier stage": ("cli/a.py", "from curvi._core import errors"),
    "an earlier stage, relatively": ("families/a.py", "from .._core.errors import CurviError"),
    "the same stage": (
        "_core/a.py",
        "from curvi._core.b import x\nfrom . import c\nfrom .d import e",
    ),
    "the same stage, from its package": ("_core/__init__.py", "from .a import b"),
    "a deep file of the same stage": ("_core/b/a.py", "from .. import c\nfrom ..d import e"),
    "the facade imports everything": (
        "__init__.py",
        "from curvi.cli import x\nfrom ._core import y",
    ),
    "interop imported inside a function": (
        "diagnostics/a.py",
        "def _f():\n    from curvi.interop import to_arviz",
    ),
    "a library with the name of a stage": ("_core/a.py", "from scipy import datasets"),
    "print in the command line": ("cli/a.py", "print('x')"),
    "print in a command line of one file": ("cli.py", "print('x')"),
    "the local context of JAX": ("_core/a.py", "with jax.enable_x64(True):\n    x = 1"),
    "arrays without pickle": ("_core/a.py", "np.load(p, allow_pickle=False)"),
    "a method called eval": ("_core/a.py", "model.eval()"),
    "a long enough file": ("_core/a.py", "x = 1\n" * MAX_LINES),
    "a private function": ("_core/a.py", "def _f():\n    return 1"),
    "a nested function": ("_core/a.py", "def f():\n    '''F.'''\n    def g(): ...\n    return g"),
    "an overload": ("_core/a.py", "@typing.overload\ndef f(x): ...\ndef f(x):\n    '''F.'''"),
}


def plant(folder: Path, name: str, text: str) -> list[str]:
    path = folder / "curvi" / name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return check_tree(folder / "curvi")


@pytest.mark.parametrize(("name", "text", "expected"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_violation_is_found(tmp_path, name, text, expected):
    problems = plant(tmp_path, name, text)
    assert len(problems) == 1
    assert problems[0].startswith(f"{name}:")
    assert expected in problems[0]


@pytest.mark.parametrize(("name", "text"), ALLOWED.values(), ids=ALLOWED.keys())
def test_what_the_rules_allow_is_left_alone(tmp_path, name, text):
    assert plant(tmp_path, name, text) == []


if __name__ == "__main__":
    sys.stdout.write(table_of_rooms() + "\n")
