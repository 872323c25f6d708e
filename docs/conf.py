"""Sphinx configuration of the manual."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TQDM_DISABLE", "1")  # examples of other libraries draw progress bars

from curvi import __version__ as release

project = "curvi"
author = "The curvi developers"
copyright = author
version = release

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx_design",
    "sphinx_copybutton", "sphinx_gallery.gen_gallery", "numpydoc", "mathml", "reference",
]  # fmt: skip
exclude_patterns = ["_build", "_extensions"]
templates_path = ["_templates"]
nitpicky = False
linkcheck_ignore = [r"https?://.*"]  # links into the manual are checked by every build

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
maximum_signature_line_length = 80
python_use_unqualified_type_names = True
numpydoc_show_class_members = False  # autodoc lists them
numpydoc_class_members_toctree = False
suppress_warnings = [
    "ref.python",  # several results have fields of one name, such as outcome
    "autosummary.import_cycle",  # names are listed in full below the text of their module
]

SECTIONS = ("regression", "other_libraries", "sequences", "images", "pieces")
sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"\.py$",
    "ignore_pattern": r"(^|/)(logistic|policy_pendulum|vae_flax)\.py$",
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("curvi",),
    "inspect_global_variables": True,
    "exclude_implicit_doc": {r"curvi\._core"},
    "image_scrapers": ("figures",),
    "reset_modules": ("matplotlib", "figures.use_house_style"),
    "capture_repr": ("_repr_html_", "__repr__"),
    "ignore_repr_types": r"matplotlib",
    "subsection_order": [f"../examples/{name}" for name in SECTIONS],
    "within_subsection_order": "FileNameSortKey",
    "nested_sections": False,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,  # times depend on the machine
    "remove_config_comments": True,
    "plot_gallery": "True",
    "only_warn_on_example_error": False,
    "abort_on_example_error": True,
    "thumbnail_size": (400, 280),
}

html_theme = "furo"
html_title = f"curvi {release}"
html_static_path = ["_static"]
html_css_files = ["curvi.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "source_repository": "https://github.com/curvi-dev/curvi",
    "source_branch": "main",
    "source_directory": "docs/",
    "top_of_page_buttons": [],
    "footer_icons": [],
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
