"""The modules of ``.ci``, which are scripts and not installed."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / ".ci"


@contextlib.contextmanager
def modules() -> Iterator[Callable[[str], ModuleType]]:
    """Import them by name, for as long as the context lasts; skip where a checkout has none."""
    if not FOLDER.exists():
        pytest.skip("this checkout has no .ci")
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(FOLDER))
        for path in FOLDER.glob("*.py"):
            if path.stem not in before:
                sys.modules.pop(path.stem, None)
