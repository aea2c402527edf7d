"""The documentation site: `make docs` builds it with warnings as errors."""

import dataclasses
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, os.path.abspath("../src"))

import corymb

project = "Corymb"
author = "The Corymb authors"
copyright = "The Corymb authors, Apache-2.0"
version = release = corymb.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
myst_links_external_new_tab = True
suppress_warnings = ["myst.header"]  # a page may begin a section at the level that suits it

# Docstrings write code in single backticks, as Markdown does.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
python_trailing_comma_in_multi_line_signatures = False
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

html_theme = "pydata_sphinx_theme"
html_title = "Corymb"
html_static_path = ["_static"]
html_css_files = ["corymb.css"]
html_show_sourcelink = False
html_sidebars = {"gallery/index": [], "index": []}
html_theme_options = {
    "show_prev_next": True,
    "header_links_before_dropdown": 7,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

ROOT = Path(__file__).resolve().parents[1]


def outside_links(app, docname, source):
    """Links to files of the repository that are not pages become plain names: the site is built from docs/ alone."""
    home = Path(app.srcdir, docname).parent

    def replace(found):
        text, target = found[1], found[2].partition("#")[0]
        place = (home / target).resolve()
        inside = place.is_relative_to(Path(app.srcdir)) and place.suffix in (".md", ".svg", ".png", ".html")
        if inside or "://" in target or not target:
            return found[0]
        name = place.relative_to(ROOT).as_posix() if place.is_relative_to(ROOT) else target
        return f"{text} (`{name}` in the repository)" if name not in text else text

    source[0] = re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", replace, source[0])


def as_fields(app, what, name, obj, options, lines):
    """`Arguments:` sections as field lists. Not napoleon: it takes `text: more` below a setting for a type."""
    inside, found = False, []
    for line in lines:
        if line.strip() == "Arguments:":
            inside = True
            found += [""]
        elif inside and (match := re.match(r"    (\w+): (.*)", line)):
            found.append(f":param {match[1]}: {match[2]}")
        elif inside and line.startswith("        "):
            found.append(f"    {line.strip()}")
        else:
            inside = inside and not line.strip()
            found.append(line if line.startswith((" ", ">>>")) or "`" in line else line.replace("|", r"\|"))
    lines[:] = found


def without_fields(app, what, name, obj, options, signature, returns):
    """Settings are listed one by one below their class: its signature would only repeat them."""
    return ("", None) if what == "class" and dataclasses.is_dataclass(obj) else (signature, returns)


def setup(app):
    app.connect("source-read", outside_links)
    app.connect("autodoc-process-docstring", as_fields)
    app.connect("autodoc-process-signature", without_fields)
