"""A report as data, and as the two files that are written of it."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from curvi._core.errors import InputError
from curvi._core.files import write_atomically
from curvi._core.text import printable
from curvi.io import versions

FORMAT = "curvi report 1"
GENERATOR = '<meta name="generator" content="curvi report">'


@dataclass(frozen=True)
class Verdict:
    """What a reader who is no statistician has to know first, and what to do about it."""

    level: Literal["good", "caution", "bad"]
    headline: str
    sentences: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """The level as a word, for those who cannot see colours."""
        return {"good": "Good", "caution": "Caution", "bad": "Not usable"}[self.level]


@dataclass(frozen=True)
class Tile:
    """A number that matters, its name, and a line that explains it."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Tab:
    """A part of the page: its name in addresses, its title, and what it shows."""

    key: str
    title: str
    blocks: tuple[Any, ...]


@dataclass(frozen=True)
class Report:
    """Everything that a page says about a fit."""

    title: str
    subtitle: str
    verdict: Verdict
    tiles: tuple[Tile, ...]
    tabs: tuple[Tab, ...]

    def html(self) -> str:
        """One page that refers to nothing outside it; every text of the user is escaped."""
        return render(self)

    def json(self) -> str:
        """The numbers of the page in full precision."""
        verdict = self.verdict
        content = {
            "format": FORMAT,
            "title": self.title,
            "subtitle": self.subtitle,
            "verdict": {
                "level": verdict.level,
                "headline": verdict.headline,
                "sentences": list(verdict.sentences),
                "advice": list(verdict.advice),
            },
            "numbers": {tile.name: tile.value for tile in self.tiles},
            "parts": {
                tab.key: {
                    block.title: found
                    for block in tab.blocks
                    if (found := block.data()) is not None
                }
                for tab in self.tabs
            },
            "versions": versions(),
        }
        return json.dumps(content, indent=1, allow_nan=False) + "\n"


def render(report: Report) -> str:
    """The page of a report.

    The figures are SVG that is drawn here, and a few lines of script of our own show values at the
    pointer, sort and switch parts. A library of figures would add megabytes to every page, and
    would draw nothing where scripts are switched off, in print or in a preview of a mail.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        plain = isinstance(value, str) and not isinstance(value, Markup)
        return printable(value, keep="\n") if plain else value

    environment = Environment(
        autoescape=True, loader=PackageLoader("curvi.report"), undefined=StrictUndefined,
        finalize=finalize, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    script = _template("page.js")
    # Nothing may be loaded, and no script may run but the one whose digest is named here.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        report=report,
        generator=Markup(GENERATOR),  # noqa: S704  our own text
        style=Markup(_template("page.css")),  # noqa: S704
        script=Markup(script),  # noqa: S704
        digest=digest,
        version=versions()["curvi"],
    )


def _template(name: str) -> str:
    return (importlib.resources.files(__package__) / "templates" / name).read_text("utf-8")


def write_report(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the page, and its numbers beside it under the same name with the ending .json.

    Each file is complete or as it was before. A page of an earlier report is replaced.

    Parameters
    ----------
    report : Report
        What to write.
    path : path
        The page; ``.html`` is added to a name without an ending.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    InputError
        If the ending is ``.json``, or there is a file of that name that is no report.
    OSError
        If a file cannot be written.
    """
    page = Path(path)
    page = page if page.suffix else page.with_suffix(".html")
    if page.suffix == ".json":
        raise InputError(f"{page} would be the page and its numbers; let it end in .html")
    if page.is_file() and GENERATOR not in page.read_text("utf-8", errors="replace"):
        raise InputError(f"{page} exists and is no report of curvi; choose another name")
    write_atomically(page.with_suffix(".json"), report.json())
    write_atomically(page, report.html())
    return page
