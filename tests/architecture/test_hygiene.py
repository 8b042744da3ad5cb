"""The fixture that proves tests leave nothing behind does find what they leave."""

import sys
import textwrap
from pathlib import Path

import pytest

from commands import ran

SUPPORT = Path(__file__).parents[1] / "support"


def run(tmp_path, body):
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(SUPPORT)!r})\n"
        "import hygiene\nhygiene._PATIENCE = 0.3\npytest_plugins = ['hygiene']\n"
    )
    (tmp_path / "test_it.py").write_text(textwrap.dedent(body))
    return ran(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path],
        cwd=tmp_path,
    )


WAITING = "import signal; signal.alarm(20); signal.pause()"


@pytest.mark.parametrize(
    "body,told",
    [
        (
            f"""
            import subprocess, sys, threading
            left = []
            def test_it():
                threading.Thread(target=threading.Event().wait, daemon=True, name="left").start()
                left.append(subprocess.Popen([sys.executable, "-c", {WAITING!r}]))
            def teardown_module():
                for process in left:
                    process.kill()
                    process.wait()
            """,
            ["thread 'left'", "signal.pause()"],
        ),
        (
            """
            import logging, os, pathlib, signal
            def test_it():
                pathlib.Path(os.environ["XDG_RUNTIME_DIR"], "fiber", "left").mkdir()
                os.environ["FIBER_X"] = "1"
                logging.getLogger("fiber").addHandler(logging.StreamHandler())
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            """,
            [
                "file fiber/left",
                "os.environ['FIBER_X']: was None, is '1'",
                "handlers: was []",
                "signals: was",
            ],
        ),
    ],
    ids=["what runs", "files and settings"],
)
def test_what_a_test_leaves_is_named(tmp_path, body, told):
    done = run(tmp_path, body)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "this test left behind:" in done.stdout
    assert [words for words in told if words not in done.stdout] == []


def test_an_orphan_is_found_at_the_end_and_ended(tmp_path):
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {WAITING!r}])"
    done = run(
        tmp_path,
        f"""
        import subprocess, sys, threading
        def test_it():
            thread = threading.Thread(target=print)
            thread.start()
            subprocess.run([sys.executable, "-c", {orphan!r}], check=True)
            thread.join()
        """,
    )

    # the test itself was tidy
    assert (done.returncode, "1 passed" in done.stdout) == (1, True), done.stdout + done.stderr
    assert "these processes outlived the tests" in done.stderr
