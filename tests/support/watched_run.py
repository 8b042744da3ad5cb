"""A program in a job elsewhere, and what the commands that look at runs tell of it."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import require
from commands import ran
from waiting import PATIENCE, until

_FIBER = (sys.executable, "-m", "fiber.cli.main")
#: a map of five, whose fourth task goes on until the program is ended
_PROGRAM = """
import signal
import fiber

def work(number):
    if number == 3:
        signal.pause()
    return number

if __name__ == "__main__":
    with fiber.Pool(1) as pool:
        for number in pool.imap(work, range(5)):
            print(number, flush=True)
"""


def check_watched(environ: Mapping[str, str], folder: Path, python: str, *options: str) -> None:
    """Start a program by ``fiber run``; ``fiber top`` and ``fiber dashboard`` show how far it is.

    Args:
        environ: of the commands.
        folder: their working directory.
        python: interpreter there.
        options: of ``fiber run``.
    """
    require.need_module("starlette")
    require.need_module("uvicorn")
    # hosts of some tests share this one's files, and the program must not answer here
    here = tempfile.mkdtemp(prefix="fw-")
    own = {**environ, "XDG_RUNTIME_DIR": here}

    def fiber(*words: str) -> str:
        done = ran([*_FIBER, *words], env=own, cwd=folder)
        assert done.returncode == 0, done
        return done.stdout

    program = ("-u", "-c", f"exec({_PROGRAM!r})")
    job = fiber("run", *options, "--", python, *program).strip().rpartition(": ")[2]
    try:
        until(lambda: fiber("logs", job).split() == ["0", "1", "2"])
        (found,) = json.loads(fiber("top", "--once", "--json", job))
        _check_page(own, folder, job, found["run"])
    finally:
        fiber("kill", "--now", job)
        fiber("gc")
        shutil.rmtree(here)
    assert found["job"] == job
    assert found["status"], found
    (pool,) = found["status"]["pools"]
    (worker,) = pool["workers"]
    assert (pool["done"], worker["state"], worker["function"]) == (3, "busy", "work")


def _check_page(environ: Mapping[str, str], folder: Path, job: str, run: str) -> None:
    words = [*_FIBER, "dashboard", "--listen", "127.0.0.1:0", job]
    with subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, env=environ, cwd=folder
    ) as process:
        try:
            said = process.stderr.readline()
            url = re.search(r"http://\S+(?=;)", said)[0]
            with urllib.request.urlopen(url.replace("/?", "/runs?"), timeout=PATIENCE) as page:
                assert [one["id"] for one in json.load(page)] == [run]
            try:
                urllib.request.urlopen(f"{url}x", timeout=PATIENCE)
            except urllib.error.HTTPError as refused:
                # it has the answer's body open
                with refused:
                    code = refused.code
        finally:
            process.terminate()
    assert code == 403
