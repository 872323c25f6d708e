"""The report of a fit: one page that stands alone, and its numbers as JSON beside it."""

from curvi.report._blocks import Code, Estimate, Facts, Forest, Grid, Pictures, Prose
from curvi.report._chart import Chart, Layer, Rule
from curvi.report._notebook import notebook_html as notebook_html
from curvi.report._page import Report, Tab, Tile, Verdict, write_report
from curvi.report._text import text_of as text_of

__all__ = [
    "Chart", "Code", "Estimate", "Facts", "Forest", "Grid", "Layer", "Pictures", "Prose", "Report",
    "Rule", "Tab", "Tile", "Verdict", "write_report",
]  # fmt: skip
