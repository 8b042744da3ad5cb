"""Builds the documentation: ``tox -e docs``; warnings are errors and nothing is fetched."""

from __future__ import annotations

from importlib import metadata
from typing import Any

project = "Fiber"
author = "The Fiber developers"
release = metadata.version("fiber-core")
version = release
copyright = "2025, The Fiber developers"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
autoclass_content = "class"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_admonition_for_notes = True

nitpicky = True
# names of the standard library and of type variables; there is no inventory to look them up in,
# because the build fetches nothing
nitpick_ignore_regex = [
    (r"py:.*", r"(collections\.abc|concurrent\.futures|typing|types)\..*"),
    (r"py:.*", r"(multiprocessing|threading|queue|enum|ctypes|copyreg)\..*"),
    (r"py:.*", r"(abc|attrs|attr|click|pluggy|cloudpickle|pathlib|logging|os|io|socket)\..*"),
    (r"py:.*", r"(Any|Callable|Iterable|Iterator|Mapping|Sequence|BinaryIO|Path|_?[A-Z][A-Z]?|Ts)"),
    (r"py:mod", r"array"),
    (r"py:.*", r"contextlib\..*"),
    # of constructors that users do not call, and joblib's own
    (r"py:.*", r"(CallbackThread|ExecutorCall|SemLock|FallbackToBackend)"),
    (r"py:.*", r"(_T|_R|_S|fiber\..*\.[A-Z]|fiber\..*\._.*|.*\b_[A-Za-z]\w*)"),
    (
        r"py:(class|exc)",
        r"(optional|Exception|BaseException|[A-Z]\w*Error|[A-Z]\w*Warning)",
    ),
]

html_theme = "furo"
html_title = f"Fiber {release}"
html_theme_options = {"navigation_with_keys": True}


_attributes: dict[str, list[str]] = {}


def _hide(_: Any, what: str, name: str, __: Any, ___: Any, lines: list[str]) -> None:
    # napoleon takes "text: more" on the first line of an attribute for its type
    if what in {"attribute", "data", "property"}:
        _attributes[name] = list(lines)
        lines.clear()


def _without_fields(_: Any, what: str, __: str, ___: Any, ____: Any, lines: list[str]) -> None:
    # help() shows the fields of a class of values in its docstring; here each has an entry of its own
    for title in ("Fields:", "Members:"):
        if what == "class" and title in lines:
            del lines[lines.index(title) :]


def _show(_: Any, __: str, name: str, ___: Any, ____: Any, lines: list[str]) -> None:
    lines.extend(_attributes.pop(name, []))


def setup(app: Any) -> None:
    """Keep napoleon away from the docstrings of attributes."""
    app.connect("autodoc-process-docstring", _hide, priority=100)
    app.connect("autodoc-process-docstring", _without_fields, priority=100)
    app.connect("autodoc-process-docstring", _show, priority=900)
