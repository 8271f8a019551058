"""How Sphinx builds these pages: `sphinx-build -W docs <target>`."""

from importlib.metadata import version as _version

project = "statifier_router"
author = "the statifier_router authors"
copyright = author  # noqa: A001  # Sphinx's name for it
release = version = _version("statifier-router")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"{project} {release}"

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
# Headings can be linked to, from page to page.
myst_heading_anchors = 3

autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
# Attributes are told in the text of their class.
napoleon_use_ivar = True
# Docstrings quote code with single backticks.
default_role = "code"
