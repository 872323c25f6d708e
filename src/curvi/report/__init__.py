"""The report of a fit: one page that stands alone, and its numbers as JSON beside it."""

from curvi.report._blocks import (
    LEVEL,
    Code,
    Estimate,
    Facts,
    Forest,
    Grid,
    Pictures,
    Prose,
    estimates_of,
    normal_estimate,
    percent,
    plain,
    rounded,
)
from curvi.report._build import AMOUNTS, READ, READ_PLAIN, Page, bound_chart, bound_tile, given
from curvi.report._chart import Chart, Layer, Rule
from curvi.report._page import Report, Tab, Tile, Verdict, write_report
from curvi.report._predictive import (
    calibration,
    central,
    coverage,
    described,
    evenly,
    few_classes,
    predictive,
)
from curvi.report._text import notebook_html, text_of

__all__ = [
    "AMOUNTS", "LEVEL", "READ", "READ_PLAIN", "Chart", "Code", "Estimate", "Facts", "Forest",
    "Grid", "Layer", "Page", "Pictures", "Prose", "Report", "Rule", "Tab", "Tile", "Verdict",
    "bound_chart", "bound_tile", "calibration", "central", "coverage", "described",
    "estimates_of", "evenly", "few_classes", "given", "normal_estimate", "notebook_html",
    "percent", "plain", "predictive", "rounded", "text_of", "write_report",
]  # fmt: skip
