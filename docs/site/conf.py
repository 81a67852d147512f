"""Sphinx's settings. `build.py` calls Sphinx with them on a folder that it has filled."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx

from clippedgossip import __version__

project = "ClippedGossip"
release = version = __version__
project_copyright = "the authors of ClippedGossip"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
exclude_patterns = ["examples/**"]
highlight_language = "none"
smartquotes = False  # what is quoted is copied into a terminal

myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = True
autodoc_mock_imports = [name for name in ("flwr", "lightning", "transformers") if find_spec(name) is None]
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries = False

html_theme = "furo"
html_title = "ClippedGossip"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False


def setup(app: Sphinx) -> None:
    """Formulas as MathML, which browsers draw themselves; docstrings as the plain text that they are."""
    app.add_node(nodes.math, override=True, html=(_inline_formula, None))
    app.add_node(nodes.math_block, override=True, html=(_block_formula, None))
    app.connect("autodoc-process-docstring", _plain)


def _inline_formula(self: Any, node: nodes.math) -> None:
    self.body.append(latex2mathml.tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block_formula(self: Any, node: nodes.math_block) -> None:
    formula = latex2mathml.tex2mathml(node.astext(), as_block=True)
    self.body.append(f'<div class="formula">{formula}</div>')
    raise nodes.SkipNode


def _plain(app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Our docstrings use backticks for code and no other markup: every sign stands for itself."""
    text = "\n".join(_escaped(line.strip()) for line in lines)
    lines[:] = [*re.sub(r"\n(?=(?:Needs|Fails|Cost|Origin): )", "\n\n", text).splitlines(), ""]


def _escaped(line: str) -> str:
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(
        f"`{part}`" if part.startswith("`") and len(part) > 2 else re.sub(r"([\\*|_`])", r"\\\1", part)
        for part in parts
    )
