"""A test that hangs fails by its name, whatever it was doing."""

import sys
import textwrap
from pathlib import Path

from commands import ran

SUPPORT = Path(__file__).parents[1] / "support"


def test_a_loop_that_is_interrupted_where_no_line_begins_fails_and_the_others_run(tmp_path):
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(SUPPORT)!r})\npytest_plugins = ['timeouts']\n"
    )
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(
            """
            import itertools

            def test_that_hangs():
                # the jump back has no line number, from Python 3.11
                for each in itertools.repeat(0):
                    if each:
                        if each:
                            each = 1

            def test_after_it():
                pass
            """
        )
    )
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout_method=signal"]

    done = ran([sys.executable, *words, "--timeout=0.5", "--rootdir", tmp_path], cwd=tmp_path)

    assert "INTERNALERROR" not in done.stdout
    assert "FAILED test_it.py::test_that_hangs - Failed: Timeout" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
