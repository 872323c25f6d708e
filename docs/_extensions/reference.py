"""What the pages of the reference leave out of signatures and docstrings, and what they add."""

from __future__ import annotations

import enum
import inspect
import re
from typing import Any

from sphinx.application import Sphinx

# Float[Array, "rows columns"] documents shapes for the type checker; a reader has them in the text.
_SHAPED = re.compile(
    r"(?:Float|Int|Bool|Num|Inexact|Real|Shaped|UInt|Key|PRNGKeyArray|Integer)"
    r"\[(?:[\w.]*\.)?(Array|ndarray)(?: \| [\w.]*)?, '[^']*'\]"
)
_PATHS = (
    (re.compile(r"<module '([\w.]+)' from '[^']*'>"), r"\1"),
    (re.compile(r"jaxlib\._jax\.Array|jax\.Array|jax\._src\.array\.Array"), "Array"),
    (re.compile(r"(?:numpy\.)?ndarray(?:\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\])?"), "ndarray"),
    (re.compile(r"\b(?:curvi|jax|jaxtyping|collections|pandas|typing|pathlib)\.(?:\w+\.)*"), ""),
)
_ESTIMATOR = (
    "Like every estimator of scikit-learn it also has ``get_params``, ``set_params`` and the "
    "methods that its mixins add, such as ``score`` or ``fit_transform``."
)


# Data have no docstring of their own.
_DATA = {
    "curvi.paper.concentration.ACTIVATION_SLOPES": "The largest slope of each activation function.",
}


def readable(text: str | None) -> str | None:
    """A signature or annotation with the short names of its types."""
    if text is None:
        return None
    text = _SHAPED.sub(r"\1", text)
    for pattern, replacement in _PATHS:
        text = pattern.sub(replacement, text)
    return re.sub(r"\b(\w+) \| \1\b", r"\1", text)


def clean_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str, returned: str
) -> tuple[str | None, str | None]:
    """Take paths and shapes out of a signature."""
    return readable(signature), readable(returned)


def add_notes(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """List the members of an enumeration, and name what an estimator has from scikit-learn."""
    if name in _DATA:
        lines[:] = [_DATA[name]]
    bases = {base.__name__ for base in getattr(thing, "__mro__", ())}
    if what == "class" and "BaseEstimator" in bases:
        lines += ["", _ESTIMATOR, ""]
    if what == "class" and isinstance(thing, enum.EnumMeta):
        lines += ["", ".. rubric:: Members", ""]
        for member in thing:
            meaning = getattr(member, "sentence", None)
            lines.append(f"* ``{member.name}``" + (f": {meaning}" if meaning else ""))
        lines.append("")


def skip_noise(
    app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out fields of named tuples, which their class describes, and what others inject."""
    if type(thing).__name__ == "_tuplegetter":
        return True
    function = inspect.unwrap(thing) if callable(thing) else thing
    module = getattr(function, "__module__", None) or ""
    return True if module.startswith(("sklearn.", "enum", "dataclasses")) else None


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the hooks of autodoc."""
    app.connect("autodoc-process-signature", clean_signature)
    app.connect("autodoc-process-docstring", add_notes)
    app.connect("autodoc-skip-member", skip_noise)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
