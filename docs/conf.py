"""Sphinx configuration; ``make docs`` builds the HTML."""

import re
import sys
from pathlib import Path
from typing import Any, List

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import notebooks

from snnipu import __version__

project = "snnipu"
author = "snnipu contributors"
copyright = "2026, snnipu contributors"
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
# Notebooks are stored with their outputs (make notebooks), so Sphinx does not run them.
nb_execution_mode = "off"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"snnipu {version}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))


def lead_to_tutorials(app: Sphinx, page: str, source: List[str]) -> None:
    """Change links to notebooks, which are above ``docs`` in the repository and copied into it for Sphinx."""
    source[0] = re.sub(r"\]\((?:\.\./)+tutorials/(?=\w+\.ipynb)", "](/tutorials/", source[0])


def need_descriptions(app: Sphinx, document: nodes.document, page: str) -> None:
    for image in document.findall(nodes.image):
        if not image.get("alt", "").strip():
            logging.getLogger(__name__).warning("a picture without a text: %s", image["uri"], location=page)


def setup(app: Sphinx) -> Any:
    notebooks.write_pages()
    app.connect("source-read", lead_to_tutorials)
    app.connect("doctree-resolved", need_descriptions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
