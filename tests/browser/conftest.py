"""A real browser, and pages of real fits to look at; everything is skipped where there is none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import curvi
from curvi.plots import plot_images, png_bytes
from curvi.report import Pictures, Report, Tab, Verdict, write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install 'curvi[browser]'"
    )
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser is installed; one of {', '.join(NAMES)} is needed")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory) -> dict[str, Path]:
    """A regression, a mixed model, a series, and pictures, one with every verdict."""
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 16)) @ np.triu(np.ones((16, 16)))
    y = X[:, 0] - 0.5 * X[:, 5] + rng.normal(size=150)
    regression = curvi.BayesianLinearRegression().fit(X, y)
    group = np.repeat(np.arange(14), 6)
    x = rng.normal(size=84)
    slow = np.where(x + rng.normal(size=14)[group] + rng.normal(size=84) > 0, "yes", "no")
    table = {"slow": slow, "x": x, "group": [f"group & <{g}>" for g in group]}
    mixed = curvi.MixedModel("slow ~ x + (1 | group)", likelihood="bernoulli").fit(table)
    counts = rng.poisson(np.exp(2 + 0.5 * np.sin(np.arange(60) / 2))).astype(float)
    series = curvi.StateSpace(likelihood="poisson").fit(counts)
    picture = png_bytes(plot_images({"original": rng.random((10, 64))}, (8, 8)))
    blocks = (Pictures("Pictures", (("Ten images of noise", picture),)),)
    verdict = Verdict("bad", "Do not use it.", ("It failed.",), ("Try again.",))
    pictures = Report("Pictures", "of noise", verdict, (), (Tab("pictures", "Pictures", blocks),))
    return {
        "regression": regression.report(folder / "regression.html", X, y, title="x" * 80),
        "mixed": mixed.report(folder / "mixed.html"),
        "series": series.report(folder / "series.html"),
        "pictures": write_report(pictures, folder / "pictures.html"),
    }


@pytest.fixture
def look(browser, pages, request):
    """Open a page by its name; console messages, errors and requests are kept and must be few."""
    opened, said = [], []

    def open_page(name: str, *, width: int = 1280, part: str = "", **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        opened.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda asked: said.append(asked.url) if _is_outside(asked) else None)
        page.goto(pages[name].as_uri() + part)
        return page

    yield open_page
    if folder := os.environ.get("CURVI_SCREENSHOTS"):
        for number, context in enumerate(opened):
            for page in context.pages:
                name = f"{request.node.name}-{number}".replace("/", "-")
                page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)
    for context in opened:
        context.close()
    assert said == []


def _is_outside(asked) -> bool:
    return not asked.url.startswith(("file:", "data:"))
