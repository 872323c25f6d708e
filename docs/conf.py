"""Sphinx configuration."""

from __future__ import annotations

from curvi import __version__ as release

project = "curvi"
author = "The curvi developers"
copyright = author
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3

napoleon_google_docstring = False
napoleon_use_ivar = True  # documented attributes and dataclass fields would otherwise appear twice
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {
    "members": True,
    "show-inheritance": False,
    # scikit-learn writes these methods, with references into its own manual
    "exclude-members": "set_fit_request, set_score_request, set_transform_request, "
    "set_inverse_transform_request, set_partial_fit_request, set_predict_request",
}
suppress_warnings = ["ref.python"]  # several results have fields of one name, such as outcome
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"curvi {release}"
