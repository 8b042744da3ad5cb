"""Programs for all that the standard library's page on multiprocessing shows.

Each is run as a script twice, by ``multiprocessing`` to prove that it is right, and by Fiber with
only its imports changed, and prints the same.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))
IMPORT = re.compile(r"^(?P<verb>\s*(?:from|import)) multiprocessing(?P<rest>.*)$", re.MULTILINE)


def imports_changed(source):
    """The same program, with Fiber in place of multiprocessing; not a word besides."""

    def change(match):
        verb, rest = match["verb"], match["rest"]
        if verb.strip() == "import" and not rest.strip():
            rest = " as multiprocessing"
        return f"{verb} fiber{rest}"

    return IMPORT.sub(change, source)


def printed(script, **environ):
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, **environ},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "", done.stdout + done.stderr
    return done.stdout


@functools.cache
def what_multiprocessing_prints(name):
    return printed(PROGRAMS / f"{name}.py")


@pytest.mark.parametrize("transport", ["ipc", "tls"])
@pytest.mark.parametrize("name", NAMES)
def test_with_another_import_a_program_prints_the_same(name, transport, tmp_path):
    expected = what_multiprocessing_prints(name)
    assert expected

    script = tmp_path / f"{name}.py"
    script.write_text(imports_changed((PROGRAMS / script.name).read_text()))

    assert printed(script, FIBER_LOCAL_TRANSPORT=transport) == expected


def test_only_imports_are_changed():
    source = (
        "import multiprocessing\n"
        "import multiprocessing as mp\n"
        "from multiprocessing import Pool\n"
        "    from multiprocessing.pool import ThreadPool\n"
        "print(multiprocessing.Pool)\n"
    )
    assert imports_changed(source) == (
        "import fiber as multiprocessing\n"
        "import fiber as mp\n"
        "from fiber import Pool\n"
        "    from fiber.pool import ThreadPool\n"
        "print(multiprocessing.Pool)\n"
    )
