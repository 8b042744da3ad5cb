"""Programs for all that the standard library's page shows, and for what it does beside that.

On much of the latter programs rely: what has happened when a call returns, how processes end, what closed
things raise. Each program is run by the running Python's own ``multiprocessing``, which so says what is
right, and by Fiber with only its imports changed, and prints the same.
"""

from pathlib import Path

import pytest

import swapped

PROGRAMS = Path(__file__).parent / "programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("transport", ["unix", "tls"])
def test_with_another_import_a_program_prints_the_same(name, transport, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # into a pipe a program's output is buffered in blocks, unless this is set
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    script = PROGRAMS / f"{name}.py"

    printed = swapped.prints_with_fiber(script, tmp_path, FIBER_LOCAL_TRANSPORT=transport)

    assert printed == swapped.prints(script)
