"""Figures of the gallery: what an example leaves in a variable or as its last expression is shown.

Figures of curvi do not pass through pyplot, so the scraper of sphinx-gallery does not see them.
A figure with a transparent background is a picture; any other is a drawing, which the style sheet
inverts on a dark page.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from curvi.plots._style import settings

_DPI = 150
_SHOWN = "__figures_shown__"


def scrape(block: tuple[str, str, int], block_vars: dict[str, Any], gallery_conf: Any) -> str:
    """Save the figures that this block made, and return the text that shows them."""
    names = block_vars["example_globals"]
    shown = names.setdefault(_SHOWN, [])
    found = [thing for thing in names.values() if isinstance(thing, Figure)]
    found += [plt.figure(number) for number in plt.get_fignums()]
    text = []
    for figure in found:
        if any(figure is other for other in shown):
            continue
        shown.append(figure)
        path = Path(next(block_vars["image_path_iterator"]))
        picture = figure.get_facecolor()[3] == 0
        figure.savefig(path, dpi=_DPI, bbox_inches="tight")
        text.append(
            f".. image:: /{path.relative_to(gallery_conf['src_dir'])}\n"
            f"   :class: {'picture' if picture else 'drawing'}\n"
            f"   :alt: {gallery_title(block_vars['src_file'])}\n"
        )
    plt.close("all")
    return "\n".join(text)


def gallery_title(path: str) -> str:
    """The title of an example, which also says what its figures show."""
    for line in Path(path).read_text().splitlines():
        if (words := line.strip('"r ').strip()) and not line.startswith("==="):
            return words
    return Path(path).stem


def use_house_style(gallery_conf: Any, name: str) -> None:
    """Give figures that an example draws by itself the style of all others."""
    plt.rcParams.update(settings())


def _get_sg_image_scraper() -> Callable[..., str]:
    """What sphinx-gallery calls where its configuration names this module."""
    return scrape
