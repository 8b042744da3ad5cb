"""Programs for ``multiprocessing``, run by it and by Fiber with nothing but an import changed."""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from commands import ran

_IMPORT = re.compile(r"^(?P<verb>\s*(?:from|import)) multiprocessing(?P<rest>.*)$", re.MULTILINE)


def imports_changed(source: str) -> str:
    """The same program, with Fiber in place of multiprocessing; not a word besides."""

    def change(match: re.Match[str]) -> str:
        verb, rest = match["verb"], match["rest"]
        if verb.strip() == "import" and " as " not in rest:
            # a sub-module is used by its whole name
            rest += f"{', fiber' if rest.strip() else ''} as multiprocessing"
        return f"{verb} fiber{rest}"

    return _IMPORT.sub(change, source)


def change_library(name: str, folder: Path) -> Path:
    """A copy of a package that imports Fiber in place of multiprocessing; the folder to import from.

    Args:
        name: the package, which is installed.
        folder: where the copy is made.
    """
    found = importlib.util.find_spec(name)
    assert found is not None
    (source,) = found.submodule_search_locations or ()
    shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    changed = 0
    for path in (folder / name).rglob("*.py"):
        before = path.read_text(encoding="utf-8")
        path.write_text(imports_changed(before), encoding="utf-8")
        changed += path.read_text(encoding="utf-8") != before
    assert changed
    return folder


@functools.cache
def prints(script: Path) -> str:
    """What a program prints as it stands; it ends well."""
    # not judged by what is on standard error: loky's resource tracker, for one, warns there at times
    return _ran(script, {}).stdout


def prints_with_fiber(
    script: Path, folder: Path, changes: Mapping[str, str] | None = None, **environ: str
) -> str:
    """What it prints with Fiber; it ends well, and says nothing on standard error.

    Args:
        script: the program.
        folder: where the changed one is written.
        changes: what else is put in place of what, where a library makes the processes.
        environ: variables that it finds in its environment.
    """
    source = imports_changed(script.read_text(encoding="utf-8"))
    assert not _IMPORT.search(source)
    for old, new in (changes or {}).items():
        assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {script.name}"
        source = source.replace(old, new)
    assert "import fiber" in source or "from fiber" in source or "PYTHONPATH" in environ
    changed = folder / script.name
    changed.write_text(source, encoding="utf-8")
    done = _ran(changed, environ)
    assert not done.stderr, done.stdout + done.stderr
    return done.stdout


def _ran(script: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    done = ran([sys.executable, script], env={**os.environ, **environ})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    return done
