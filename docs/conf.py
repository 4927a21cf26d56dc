"""Sphinx configuration; ``make docs`` builds the HTML."""

import re
import sys
from pathlib import Path
from typing import Any, Iterator, List, Optional

from docutils import nodes
from sphinx import addnodes
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

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx-mathjax-offline",  # has MathJax, so that pages load no script from a network
    "sphinx_copybutton",
]
templates_path = ["_templates"]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
# Notebooks are stored with their outputs (make notebooks), so Sphinx does not run them.
nb_execution_mode = "off"

autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# A field may have several names: "crop, downsample: ...".
napoleon_use_param = False
napoleon_custom_sections = [("Attributes", "params_style")]

# The inventories are text files with the names that the pages use, so a build needs no network.
intersphinx_mapping = {
    "torch": ("https://docs.pytorch.org/docs/stable/", "inventories/torch.txt"),
    "snntorch": ("https://snntorch.readthedocs.io/en/latest/", "inventories/snntorch.txt"),
}

# Output has no copy button.
copybutton_selector = "div:not(.output):not(.highlight-text) > div.highlight > pre"

html_theme = "furo"
html_title = f"snnipu {version}"
html_logo = html_favicon = "logo.svg"
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


def remove_old_pages() -> None:
    """Remove generated pages of names that are no longer in a table of the reference."""
    reference = Path(__file__).resolve().parent / "reference"
    names = set(
        re.findall(r"^   (snnipu\.[\w.]+)$", "".join(p.read_text("utf-8") for p in reference.glob("*.md")), re.M)
    )
    for page in reference.glob("generated/*.rst"):
        if page.stem not in names:
            page.unlink()


def skip_inherited(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> Optional[bool]:
    """Leave out members that a class inherits from PyTorch, snnTorch or Python."""
    function = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return None if str(getattr(function, "__module__", "")).startswith("snnipu") else True


# The packages that a name in the text may belong to, by its first word. Any other word is a module of the last two.
PACKAGES = {"snn": ("snnipu", "snntorch"), "nn": ("torch.nn",), "torch": ("torch",)}


def full_names(code: str) -> Iterator[str]:
    """Return the names that a piece of code such as ``snn.Leaky(beta=0.9)`` may have in an inventory."""
    call = re.fullmatch(r"([a-z]\w*)((?:\.\w+)+)(?:\(.*\))?", code, re.DOTALL)
    if call:
        first, rest = call.groups()[:2]
        for package in PACKAGES.get(first, (first, f"snnipu.{first}", f"snntorch.{first}")):
            yield package + rest
            # PyTorch and snnTorch document some names by the module of the definition.
            thing: Any = sys.modules.get(package)
            for word in rest.split(".")[1:]:
                thing = getattr(thing, word, None)
            yield f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"


def link_names(app: Sphinx, document: nodes.document, page: str) -> None:
    """Link names in the text, such as ``snn.Leaky`` and ``nn.Linear``, to their pages."""
    python = app.env.domains["py"]
    for code in list(document.findall(nodes.literal)):
        if isinstance(code.parent, (nodes.reference, nodes.title)):
            continue
        for name in full_names(code.astext()):
            target = addnodes.pending_xref(refdomain="py", reftype="obj", reftarget=name, refdoc=page)
            link = python.resolve_xref(app.env, page, app.builder, "obj", name, target, code.deepcopy())
            link = link or app.emit_firstresult("missing-reference", app.env, target, code.deepcopy())
            if link:
                code.replace_self(link)
                break


def setup(app: Sphinx) -> Any:
    notebooks.write_pages()
    remove_old_pages()
    app.connect("source-read", lead_to_tutorials)
    app.connect("autodoc-skip-member", skip_inherited)
    app.connect("doctree-resolved", link_names)
    app.connect("doctree-resolved", need_descriptions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
