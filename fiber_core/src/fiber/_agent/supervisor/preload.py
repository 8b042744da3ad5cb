"""Imports modules before the first fork, so that every child has them at no cost."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterable

__all__ = ["preload"]


def preload(modules: Iterable[str]) -> dict[str, str]:
    """Import modules; returns those that failed, with the reason."""
    failures = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            # whatever a module does while it is imported, children can do without the head start
            failures[name] = f"{type(error).__name__}: {error}"
    # a module may have left threads behind; what a fork makes of them is its author's affair
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return failures
