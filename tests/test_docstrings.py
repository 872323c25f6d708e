"""Public classes and functions have numpydoc docstrings that match their signatures."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from typing import Any

import numpydoc.docscrape
import pytest
from numpydoc.validate import ERROR_MSGS, validate

import curvi

pytestmark = pytest.mark.float64_only

ROOMS = (
    "targets", "families", "objective", "paper.reference", "paper.concentration", "linalg",
    "solvers",
    "engine", "inference", "diagnostics", "interop", "glm", "vae", "sequences", "datasets", "plots",
    "io",
)  # fmt: skip

# Every check of numpydoc that is not made, and why.
SWITCHED_OFF = {
    "ES01": "one line is enough where one line says everything",
    "EX01": "examples stand in the manual, which runs them; a docstring has one where it helps",
    "PR04": "types stand in the signature, where mypy and the run-time checker read them",
    "PR05": "types stand in the signature",
    "PR06": "types stand in the signature",
    "PR08": "a description may start with a symbol or a lower-case name",
    "PR09": "a description may be a phrase without a full stop",
    "RT02": "a named return value is clearer than a bare type where there are several",
    "RT04": "a description may start with a symbol or a lower-case name",
    "RT05": "a description may be a phrase without a full stop",
    "SA01": "the manual links related names; a list in every docstring would go stale",
    "SA04": "a name in See Also may speak for itself",
    "SS05": "a docstring states what is computed, formula included; the mood is free",
    "GL01": "the summary stands on the line of the opening quotes",
    "GL02": "the closing quotes of a one-line docstring stand on its line",
    "GL03": "ruff checks blank lines",
}
CHECKS = frozenset(ERROR_MSGS) - frozenset(SWITCHED_OFF)


def public_objects() -> dict[str, Any]:
    """Every public class and function once, under its shortest name."""
    found: dict[int, tuple[str, Any]] = {}
    rooms = [(f"curvi.{room}", importlib.import_module(f"curvi.{room}")) for room in ROOMS]
    for prefix, module in [("curvi", curvi), *rooms]:
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                found.setdefault(id(thing), (f"{prefix}.{name}", thing))
    return dict(found.values())


OBJECTS = public_objects()


def has_own_constructor(thing: Any) -> bool:
    """Whether a user calls this with arguments that its own docstring has to explain."""
    if not inspect.isclass(thing):
        return True
    if issubclass(thing, enum.Enum) or getattr(thing, "_is_protocol", False):
        return False
    return not issubclass(thing, BaseException) or "__init__" in vars(thing)


def documented_attributes(thing: Any) -> set[str]:
    """Fields under Attributes: a result that curvi builds documents what is read from it."""
    section = numpydoc.docscrape.NumpyDocString(inspect.getdoc(thing) or "")["Attributes"]
    return {name.strip() for entry in section for name in entry.name.split(",")}


def undocumented(thing: Any, message: str) -> set[str]:
    """The parameters that numpydoc misses, less those that stand under Attributes."""
    missing = set(re.findall(r"'([^']+)'", message))
    return missing - documented_attributes(thing) if inspect.isclass(thing) else missing


def problems(name: str, thing: Any) -> list[str]:
    """What is wrong with a docstring, as ``code: sentence``."""
    found = []
    for code, message in validate(name)["errors"]:
        if code not in CHECKS:
            continue
        if code == "PR01" and not (has_own_constructor(thing) and undocumented(thing, message)):
            continue
        found.append(f"{code}: {message}")
    return found


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_a_public_name_has_a_complete_docstring(name):
    assert problems(name, OBJECTS[name]) == []


def test_every_check_that_is_switched_off_exists():
    assert SWITCHED_OFF.keys() <= ERROR_MSGS.keys()


def planted_gap(known: int, forgotten: int) -> int:
    """Add two numbers.

    Parameters
    ----------
    known
        The first one.
    """
    return known + forgotten


def test_a_planted_gap_is_found():
    codes = {text.partition(":")[0] for text in problems(f"{__name__}.planted_gap", planted_gap)}
    assert codes == {"PR01", "RT01"}
