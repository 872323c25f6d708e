"""The files of a fitted table: settings, coefficients, a figure, and a page that shows all."""

from __future__ import annotations

import base64
from pathlib import Path

from curvi._core.files import write_atomically
from curvi.cli._table import FittedTable
from curvi.plots import png_bytes

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}: curvi fit</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; color: #1c2733; background: #fff;
         max-width: 56rem; margin: 2.5rem auto; padding: 0 1.25rem; }
  h1 { font-size: 1.5rem; margin: 0 0 .75rem; overflow-wrap: anywhere; }
  h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
  .verdict { border-left: 5px solid {{ "#2a7d4f" if converged else "#b3261e" }};
             background: {{ "#eef7f1" if converged else "#fdefee" }}; padding: .6rem 1rem; }
  .verdict strong { display: block; }
  table { border-collapse: collapse; }
  .facts th { text-align: left; font-weight: 600; padding: .15rem 1.5rem .15rem 0;
              vertical-align: top; }
  .facts td { padding: .15rem 0; overflow-wrap: anywhere; }
  .coefficients { width: 100%; font-size: .92rem; }
  .coefficients th { border-bottom: 2px solid #c9d2db; text-align: left; padding: .3rem .6rem; }
  .coefficients td { border-bottom: 1px solid #e6ebf0; padding: .22rem .6rem;
                     overflow-wrap: anywhere; }
  .coefficients .number { text-align: right; font-variant-numeric: tabular-nums;
                          white-space: nowrap; }
  .off td { color: #8a96a3; }
  img { max-width: 100%; height: auto; }
  .note { color: #5b6875; font-size: .9rem; }
  pre { background: #f4f6f8; padding: .75rem 1rem; overflow-x: auto; font-size: .85rem; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p class="verdict"><strong>{{ "converged" if converged else "NOT CONVERGED" }}</strong>
{{ message }}</p>
<h2>The fit</h2>
<table class="facts">
{% for name, fact in facts.items() -%}
<tr><th scope="row">{{ name }}</th><td>{{ fact }}</td></tr>
{% endfor -%}
</table>
<h2>Effects</h2>
<img alt="Posterior means of the effects with intervals of two sds"
 src="data:image/png;base64,{{ figure }}">
<h2>Coefficients</h2>
<p class="note">Posterior means and standard deviations in the units of the table{%
 if rows|length < total %}; the first {{ rows|length }} of {{ total }}, all are in
 coefficients.csv{% endif %}.</p>
<table class="coefficients">
<thead><tr>{% for key in rows[0] %}<th{% if key in numeric %} class="number"{% endif %} scope="col">
{{- key }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows -%}
<tr{% if row.get("selected") == "no" %} class="off"{% endif %}>{% for key, value in row.items() -%}
<td{% if key in numeric %} class="number"{% endif %}>{{ value }}</td>{% endfor %}</tr>
{% endfor -%}
</tbody>
</table>
<h2>Settings</h2>
<pre>{{ config }}</pre>
</body>
</html>
"""
_MOST_ROWS = 500


def write_report(folder: Path, fitted: FittedTable, *, title: str, config: str) -> list[str]:
    """Write the files, each complete or not at all, and return their names."""
    picture = png_bytes(fitted.figure())
    files: dict[str, str | bytes] = {
        "config.json": config,
        "coefficients.csv": fitted.as_csv(),
        "coefficients.png": picture,
        "report.html": render(fitted, title=title, config=config, picture=picture),
    }
    for name, content in files.items():
        write_atomically(folder / name, content)
    return sorted(files)


def render(fitted: FittedTable, *, title: str, config: str, picture: bytes) -> str:
    """One page without references to anything outside it; every value is escaped."""
    from jinja2 import Environment

    template = Environment(autoescape=True, trim_blocks=False).from_string(_PAGE)
    rows = fitted.rows()
    return template.render(
        title=title,
        converged=fitted.converged,
        message=fitted.message,
        facts=fitted.facts(),
        figure=base64.b64encode(picture).decode(),
        rows=rows[:_MOST_ROWS],
        total=len(rows),
        numeric=("mean", "sd"),
        config=config,
    )
