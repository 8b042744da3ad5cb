"""The ``fiber`` command on containers: it builds, starts, shows, ends and collects."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

import pytest

import require
from commands import ran
from waiting import PATIENCE, until

pytestmark = pytest.mark.timeout(300)

WAITING = (
    "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); "
    "print('one', flush=True); signal.sigwait([signal.SIGTERM]); exit(3)"
)


@pytest.fixture
def fiber(engine, tmp_path, monkeypatch):
    """Runner of the command in a folder of its own; returns its output or the whole process."""
    # pytest's own folders have names too long for a socket
    runs = tempfile.mkdtemp(prefix="fc-")
    folder = tmp_path / "pi"
    folder.mkdir()
    environ = engine.environ(XDG_RUNTIME_DIR=runs)

    def run(*words, good=True):
        if (folder / "Dockerfile").exists():
            environ.pop("FIBER_IMAGE", None)
        done = ran([sys.executable, "-m", "fiber.cli.main", *words], cwd=folder, env=environ)
        if not good:
            return done
        assert done.returncode == 0, done
        return done.stdout

    run.environ = environ
    yield run
    run("gc", "--all", good=False)
    engine.clear()
    shutil.rmtree(runs)


POOL = """
import fiber
if __name__ == "__main__":
    with fiber.Pool(2) as pool:
        print(sum(pool.map(abs, range(10))), fiber.get_backend().name)
    raise SystemExit(7)
"""


def test_a_folders_dockerfile_is_built_and_its_program_starts_containers_of_its_own(
    fiber, engine, tmp_path
):
    (tmp_path / "pi" / "Dockerfile").write_text(f"FROM {engine.image}\nCOPY pool.py /\n")
    (tmp_path / "pi" / "pool.py").write_text(POOL)

    done = fiber("run", "-a", "--share-engine", "programs", "python3", "/pool.py", good=False)

    assert (done.returncode, done.stdout) == (7, "45 docker\n")
    assert "building fiber-pi:" in done.stderr
    assert engine.containers() == []


def test_a_detached_job_is_listed_shown_entered_ended_and_collected(fiber, engine):
    (line,) = fiber("run", "--name", "train", "python3", "-u", "-c", WAITING).splitlines()
    job = line.partition(": ")[2]

    (listed,) = json.loads(fiber("ps", "--json"))
    assert (listed["job"], listed["name"], listed["state"]) == (job, "train", "running")
    entered = fiber("exec", job, "--", "sh", "-c", 'echo "$1" here', "-", "two words")
    assert entered == "two words here\n"
    fiber("kill", job)
    assert fiber("logs", "-f", job) == "one\n"
    assert json.loads(fiber("ps", "--json")) == []
    (ended,) = json.loads(fiber("ps", "--json", "--all"))
    assert (ended["state"], ended["reason"]) == ("failed", "EXIT(3)")
    fiber("gc")
    assert engine.containers() == []


WATCHED = """
import fiber, signal
if __name__ == "__main__":
    with fiber.Pool(1) as pool:
        print(sum(pool.map(abs, range(10))), flush=True)
        signal.pause()
"""


@pytest.fixture
def watched(fiber):
    """A job whose program has a pool that is idle."""
    words = ("run", "--share-engine", "programs", "python3", "-u", "-c", WATCHED)
    (line,) = fiber(*words).splitlines()
    job = line.partition(": ")[2]
    until(lambda: fiber("logs", job) == "45\n")
    return job


def test_top_shows_the_pool_of_a_program_in_a_container(fiber, watched):
    (found,) = json.loads(fiber("top", "--json"))

    assert found["job"] == watched
    (pool,) = found["status"]["pools"]
    assert (pool["done"], pool["ready"], pool["workers"][0]["state"]) == (10, 1, "idle")


def test_the_dashboard_shows_it_with_the_log_of_its_worker(fiber, watched):
    require.need_module("starlette")
    require.need_module("uvicorn")
    (found,) = json.loads(fiber("top", "--json"))
    run, worker = found["run"], found["status"]["pools"][0]["workers"][0]

    def read(path):
        address = url.replace("/?", f"/{path}&")
        return urllib.request.urlopen(address, timeout=PATIENCE)

    words = [sys.executable, "-m", "fiber.cli.main", "dashboard", "--listen", "127.0.0.1:0", run]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=fiber.environ) as process:
        try:
            url = re.search(r"http://\S+(?=;)", process.stderr.readline())[0]
            with read(f"events?run={run}") as told:
                lines = iter(told.readline, b"")
                state = json.loads(next(o for o in lines if o.startswith(b'data: {"now"'))[6:])
            with read(f"log?run={run}&job={worker['job']}") as told:
                log = json.load(told)
        finally:
            process.kill()

    assert state["point"]["done"] == 10
    assert state["workers"][0][1] == worker["name"]
    assert log == {"job": worker["job"], "lines": []}
