"""The local backend, where it does more than every backend does."""

import os
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

from fiber._agent import rundir
from fiber._agent.supervisor.journal import Journal
from fiber.exceptions import BackendError, BackendUnavailableError, SubmitError
from fiber.model import (
    BackendContext,
    JobSpec,
    JobState,
    Reason,
    ReasonKind,
    ResourceRequest,
    Timing,
)
from fiber.testing import FakeProvider
from fiber.testing.kit import platform as kit
from fiber_local.config import LocalConfig
from owners import REMOTE
from supervised import is_alive, until_gone
from waiting import until


class Driver(kit.Driver):
    """Submits programs, and entries by their names, and waits for what becomes of them."""

    def spec(self, what, private=b"", **changes):
        is_entry = isinstance(what, str)
        fields = {
            "run_id": self.run_id,
            "name": what if is_entry else "program",
            "argv": ("x",) if is_entry else what,
            "entry": f"supervised_entries:{what}" if is_entry else None,
            "private": private,
        }
        return JobSpec(**{**fields, **changes})

    def submit(self, *arguments, **changes):
        return self.backend.submit(self.spec(*arguments, **changes))


@pytest.fixture
def driver_with(context, opened, run_id):
    """Maker of a driver of a backend whose context differs in something."""

    def make(**changes):
        backend = opened(attrs.evolve(context, **changes))
        driver = Driver(backend, run_id, python=sys.executable, image=None, patience=60.0)
        driver.watch()
        return driver

    return make


@pytest.fixture
def driver(driver_with):
    return driver_with()


@pytest.fixture
def looking(opened):
    """A backend without a run, as another process has it."""
    return opened(BackendContext())


def supervisor_of(backend):
    return backend._supervisors._client._connection._process


def test_a_killed_supervisor_is_replaced_at_the_next_job(driver, caplog):
    job = driver.ready("wait")
    first = supervisor_of(driver.backend)

    first.kill()

    assert driver.end(job).reason == Reason(ReasonKind.NODE_LOST)
    again = driver.submit("exit_with", b"\7")
    assert driver.end(again).exit_code == 7
    assert supervisor_of(driver.backend) is not first
    assert [s.state.is_terminal for s in driver.statuses(job)].count(True) == 1
    assert "is lost: it ended without a word" in caplog.text
    until_gone(*job.data["pids"])


def test_a_supervisor_that_is_silent_for_longer_than_a_lease_keeps_its_jobs(driver_with):
    """The machine is busy: its process and channel are there, which proves that it is not lost."""
    driver = driver_with(lease=0.05, timing=Timing(heartbeat=0.02))
    job = driver.ready("wait")
    client = driver.backend._supervisors._client

    supervisor_of(driver.backend).send_signal(signal.SIGSTOP)
    until(lambda: time.monotonic() - client.last_seen > 0.5)
    assert client.is_running
    supervisor_of(driver.backend).send_signal(signal.SIGCONT)

    assert driver.end(driver.submit("exit_with", b"\7")).exit_code == 7
    assert driver.backend.status([job])[0].state is JobState.RUNNING


def test_submitting_while_supervisors_are_killed_loses_no_job(driver):
    # each submission meets a supervisor that dies about now
    for number in range(10):
        client = driver.backend._supervisors._client
        if client is not None:
            threading.Timer(0.0005 * number, client._connection._process.kill).start()
        job = driver.submit("exit_with", bytes([number]))
        status = driver.end(job)
        assert status.exit_code == number or status.reason == Reason(ReasonKind.NODE_LOST)


def test_submissions_race_with_idle_exits_and_none_is_lost(driver_with, caplog):
    driver = driver_with(config=LocalConfig(idle_exit=0.0))
    with ThreadPoolExecutor(3) as threads:
        for base in range(0, 15, 3):
            codes = range(base, base + 3)
            jobs = list(threads.map(lambda n: driver.submit("exit_with", bytes([n])), codes))
            assert [driver.end(job).exit_code for job in jobs] == list(codes)

    client = driver.backend._supervisors._client
    client._connection._thread.join(30)
    assert not client.is_running
    assert driver.end(driver.submit("exit_with", b"\7")).exit_code == 7
    assert caplog.text == ""


@pytest.fixture
def _preloaded_by_test(tmp_path, monkeypatch):
    """A module that knows its process, and an entry that ends with 1 where that is its parent."""
    (tmp_path / "preloaded_by_test.py").write_text("import os\nloaded_by = os.getpid()\n")
    (tmp_path / "preload_entry.py").write_text(
        "import os, sys\n"
        "def main(private, index):\n"
        "    return int(sys.modules['preloaded_by_test'].loaded_by == os.getppid())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("_preloaded_by_test")
def test_modules_are_preloaded_now_and_by_later_supervisors(driver, caplog):
    caplog.set_level("DEBUG")
    driver.end(driver.submit("exit_with", b"\0"))

    driver.backend.preload(["preloaded_by_test", "no_such_module"])
    assert "cannot preload no_such_module: ModuleNotFoundError" in caplog.text

    for _ in range(2):
        assert driver.end(driver.submit("main", entry="preload_entry:main")).exit_code == 1
        supervisor_of(driver.backend).kill()
        supervisor_of(driver.backend).wait()


def test_modules_are_imported_in_the_folder_of_now(
    driver, modules_in, tmp_path, monkeypatch, caplog
):
    modules_in(reads_file="open('data').close()")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "data").touch()
    assert forked_with(driver) == []
    monkeypatch.chdir(tmp_path / "folder")

    driver.backend.preload(["reads_file"])

    assert forked_with(driver) == ["reads_file"]
    assert caplog.text == ""


@pytest.mark.usefixtures("_preloaded_by_test")
def test_jobs_that_run_do_not_wait_for_imports_which_the_next_supervisor_does(driver):
    running = driver.ready("wait")
    first = driver.backend._supervisors._client

    driver.backend.preload(["preloaded_by_test"])

    assert driver.end(driver.submit("main", entry="preload_entry:main")).exit_code == 1
    second = driver.backend._supervisors._client
    assert second is not first
    assert second.takes_jobs
    assert first.is_running
    driver.backend.kill(running)
    assert driver.end(running).exit_code == -signal.SIGKILL
    first._connection._thread.join(30)
    assert not first.is_running
    # no others are started for what is there
    driver.backend.preload(["preloaded_by_test"])
    driver.end(driver.submit("exit_with", b"\0"))
    assert driver.backend._supervisors._client is second


@pytest.fixture
def modules_in(tmp_path, monkeypatch):
    """Writes modules, and an entry that fails unless each of some was imported by the process that forked it."""

    def write(*expected, **sources):
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source + "\nimport os\nloaded_by = os.getpid()\n")
        (tmp_path / "forked_entry.py").write_text(
            "import os, sys\n"
            "def main(private, index):\n"
            "    found = {n for n, m in sys.modules.items() if getattr(m, 'loaded_by', 0) == os.getppid()}\n"
            "    print(*sorted(found), flush=True)\n"
        )
        monkeypatch.syspath_prepend(tmp_path)

    return write


def forked_with(driver):
    job = driver.submit("main", entry="forked_entry:main")
    assert driver.end(job).exit_code == 0
    return " ".join(driver.backend.logs(job)).split()


STARTS_THREAD = (
    "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
)


def test_modules_that_start_threads_take_no_others_along_that_came_before(
    driver_with, modules_in, caplog
):
    modules_in(
        named="",
        early="",
        starts="import starts_thread",
        starts_again="import starts_thread",
        starts_thread=STARTS_THREAD,
        late="",
    )
    driver = driver_with(config=LocalConfig(preload=("named",)))
    for modules, found in (
        (["early"], ["early", "named"]),
        # the second one is found to start the thread once the first one does not
        (["starts", "starts_again", "late"], ["early", "named"]),
    ):
        driver.backend.preload(modules)
        assert forked_with(driver) == found
    driver.backend.preload(["late", "starts_again"])
    assert forked_with(driver) == ["early", "named"]
    assert caplog.text == ""


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess\nchild = subprocess.Popen(['sleep', '600'])",
        "import socket\npair = socket.socketpair()",
        "import signal\nsignal.setitimer(signal.ITIMER_REAL, 600)",
    ],
    ids=["a process", "a connection", "a timer"],
)
def test_modules_with_what_forks_cannot_use_are_imported_by_each_process(
    driver, modules_in, source
):
    modules_in(bound=source, free="")
    driver.backend.preload(["bound", "free"])
    assert forked_with(driver) == ["free"]


def test_half_of_a_module_that_needs_what_the_program_does_before_is_not_there(
    driver, modules_in, caplog
):
    modules_in(settings="", models="import settings\nsettings.value", early="", late="")
    driver.backend.preload(["early", "models", "late"])
    assert forked_with(driver) == ["early", "late"]
    assert caplog.text == ""


def test_what_the_user_has_named_is_given_up_last_and_with_a_warning(
    driver_with, modules_in, caplog
):
    names = ("named", "starts", "starts_again", "starts_at_last", "late")
    modules_in(
        named="",
        starts="import starts_thread",
        starts_again="import starts_thread",
        starts_at_last="import starts_thread",
        starts_thread=STARTS_THREAD,
        late="",
    )
    driver = driver_with(config=LocalConfig(preload=names))

    assert forked_with(driver) == ["named"]

    words = [record.message for record in caplog.records]
    assert [message.partition(" itself, as ")[0] for message in words] == [
        "fiber: each process imports starts",
        "fiber: each process imports starts_again",
        "fiber: each process imports starts_at_last, late",
    ]
    assert words[0].endswith(
        "the import of starts starts threads or processes, opens connections, sets up logging or fails"
    )


def test_what_ends_the_process_that_forks_takes_nothing_along_that_came_before(
    driver_with, modules_in, caplog
):
    modules_in(
        named="",
        early="",
        ends="import os\nos._exit(1)",
        late="",
    )
    driver = driver_with(config=LocalConfig(preload=("named",)))
    driver.backend.preload(["early", "ends", "late"])

    assert forked_with(driver) == ["early", "named"]
    assert "and each process imports by itself from now on: ends, late" in caplog.text


def test_the_end_on_request_ends_an_import_with_what_that_has_started(
    driver, modules_in, tmp_path, caplog
):
    modules_in(
        hangs="import pathlib, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(tmp_path)!r}, 'started').write_text(str(child.pid) + '.')\n"
        "time.sleep(600)"
    )
    driver.backend.preload(["hangs"])
    driver.backend._supervisors.start()
    until(
        lambda: (tmp_path / "started").exists() and (tmp_path / "started").read_text()[-1:] == "."
    )
    process = supervisor_of(driver.backend)

    driver.backend._supervisors.end()

    # not killed, as it would be after ten seconds
    assert process.returncode == 1
    assert not is_alive(int((tmp_path / "started").read_text()[:-1]))
    assert caplog.text == ""


def test_a_closed_backend_ends_its_streams_and_starts_no_job(driver):
    job = driver.ready("wait")
    driver.backend.close()

    driver.close()

    last = driver.statuses(job)[-1]
    assert last.exit_code == -signal.SIGKILL
    assert driver.backend.status([job]) == [last]
    with pytest.raises(BackendUnavailableError, match="was closed"):
        driver.submit("exit_with", b"\3")


def test_streams_end_though_ctrl_c_cuts_the_close_short(driver, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    stream = driver.backend.events(driver.run_id)
    with monkeypatch.context() as patch:
        patch.setattr(driver.backend._supervisors, "end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            driver.backend.close()

    assert list(stream) == []


def test_a_backend_without_a_run_looks_only(looking):
    with pytest.raises(BackendUnavailableError, match="made to look at jobs only"):
        looking.submit(JobSpec(run_id="0badcafe", name="a", argv=("true",)))


@pytest.mark.parametrize(
    "entry, changes, words",
    [
        ([], {}, "program has no program to run"),
        (["no-such-program"], {"detached": True}, "cannot run 'no-such-program'"),
    ],
)
def test_what_it_cannot_do_is_refused_in_a_sentence_and_leaves_nothing(
    driver, entry, changes, words
):
    with pytest.raises(SubmitError, match=words):
        driver.submit(entry, **changes)

    assert driver.backend.list(driver.run_id) == []


def test_jobs_have_the_environment_and_folder_of_now(driver, monkeypatch, tmp_path):
    driver.end(driver.submit("exit_with", b"\0"))
    monkeypatch.setenv("SET_LATER", "yes")
    monkeypatch.chdir(tmp_path)

    code = "import os; print(os.getcwd(), os.environ['SET_LATER'])"
    job = driver.submit([sys.executable, "-c", code])

    driver.end(job)
    assert list(driver.backend.logs(job)) == [f"{tmp_path} yes"]


def test_a_job_whose_submission_is_interrupted_is_killed(driver, monkeypatch):
    jobs, interrupted, feed = [], threading.Event(), driver.backend._feed

    def add(job, status, then=feed.add):
        then(job, status)
        jobs.append(job)
        # who submits it waits for this answer, and must not get it before it is interrupted
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert interrupted.wait(60)

    monkeypatch.setattr(feed, "add", add)
    with pytest.raises(KeyboardInterrupt):
        driver.submit("ignore_signals")
    interrupted.set()

    assert driver.end(jobs[0]).reason == Reason(ReasonKind.SIGNAL, signal.SIGKILL)


def test_a_submitter_without_a_folder_can_start_jobs(driver, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    assert driver.end(driver.submit("exit_with", b"\3")).exit_code == 3
    monkeypatch.chdir(tmp_path)


def test_a_submitter_in_a_folder_that_it_may_not_enter_can_start_jobs(
    driver, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    may = os.access
    # as after sudo -u; root may enter any
    monkeypatch.setattr(
        os, "access", lambda path, *how, **more: path != str(tmp_path) and may(path, *how, **more)
    )

    job = driver.submit([sys.executable, "-c", "import os; print(os.getcwd())"])

    driver.end(job)
    assert list(driver.backend.logs(job)) == ["/"]


def test_devices_are_looked_for_when_asked_for_and_known_to_the_next_supervisor(driver_with):
    driver = driver_with(providers={"fake": FakeProvider()})
    driver.end(driver.submit("exit_with", b"\0"))
    assert driver.backend.capacity().devices == {}

    wants = ResourceRequest(devices={"fake": 1})
    for _ in range(2):
        assert driver.end(driver.submit("exit_with", b"\0", resources=wants)).exit_code == 0
        assert driver.backend.capacity().devices["fake"] >= 1
        supervisor_of(driver.backend).kill()
        supervisor_of(driver.backend).wait()


def test_a_worker_has_its_masters_supervisor_start_its_jobs(driver, tmp_path, monkeypatch):
    (tmp_path / "worker_with_backend.py").write_text(WORKER)
    monkeypatch.syspath_prepend(tmp_path)
    directory = driver.backend._supervisors.directory
    job = driver.submit("main", directory.encode(), entry="worker_with_backend:main")

    assert driver.end(job).exit_code == 0, driver.end(job)
    parent, code, again = next(iter(driver.backend.logs(job))).split()
    assert int(parent) == supervisor_of(driver.backend).pid
    assert (code, again) == ("7", "8")


WORKER = """
import psutil
from fiber.model import BackendContext
from fiber.testing.kit.platform import Driver
from fiber_local.backend import LocalBackend

def run(directory, code):
    backend = LocalBackend(BackendContext(run_id="0badcafe", run_directory=directory))
    driver = Driver(backend, "0badcafe", python="x", image=None, patience=60)
    waiting = driver.submit(("x",), private=b"", entry="supervised_entries:wait")
    job = driver.submit(("x",), private=bytes([code]), entry="supervised_entries:exit_with")
    parent, code = psutil.Process(waiting.data["pids"][0]).ppid(), driver.end(job).exit_code
    backend.close()
    return parent, code

def main(private, index):
    parent, code = run(private.decode(), 7)
    # the channel is given back, and serves another backend object
    parent, again = run(private.decode(), 8)
    print(parent, code, again, flush=True)
    return 0
"""


def test_another_process_finds_and_ends_jobs(driver, looking):
    job = driver.submit("with_grandchild")
    grandchild = int(next(driver.backend.logs(job, follow=True)))

    (found,) = looking.list(driver.run_id)

    assert (found.id, found.name) == (job.id, "with_grandchild")
    assert looking.status([found])[0].state is JobState.RUNNING
    looking.kill(found)
    assert driver.end(job).exit_code == -signal.SIGKILL
    until_gone(grandchild)
    assert looking.status([found])[0].exit_code == -signal.SIGKILL


def test_jobs_in_another_pid_namespace_are_unknown_and_not_signalled(driver, looking):
    folder = rundir.run_root() / "0000000f"
    folder.mkdir()
    journal = Journal(str(folder), pytest.fail)
    journal._supervisor = REMOTE
    descriptor = journal.open()
    journal.submitted("a", driver.spec("wait", run_id="0000000f"), None, "far")
    # this process has that number here
    journal.started("a", 0, os.getpid())
    os.close(descriptor)

    (job,) = looking.list("0000000f")

    assert [status.state for status in looking.status([job])] == [JobState.UNKNOWN]
    for end, *words in ((looking.kill,), (looking.terminate,), (looking.signal, 0, signal.SIGTERM)):
        with pytest.raises(BackendError, match="in another container or on another host; end it"):
            end(job, *words)
    shutil.rmtree(folder)


def test_another_process_terminates_with_grace_for_which_it_waits_at_its_end(driver, looking):
    patient = driver.ready("wait_for_signal")
    stubborn = driver.ready("ignore_signals")
    for job in looking.list(driver.run_id):
        looking.terminate(job, grace=30.0 if job.id == patient.id else 0.2)
    looking.close()

    until_gone(*stubborn.data["pids"])
    assert driver.end(patient).exit_code == 9
    assert driver.end(stubborn).exit_code == -signal.SIGKILL


def test_another_process_signals_one_of_several(driver, looking):
    job = driver.ready("wait", processes=2)

    looking.signal(looking.list(driver.run_id)[0], 1, signal.SIGKILL)

    status = driver.until(job, lambda s: s.processes[1].state.is_terminal, "the end of one")
    assert status.processes[0].state is JobState.RUNNING


def test_another_process_follows_the_changes_of_a_run(driver, looking):
    first = driver.ready("wait")
    events = looking.events(driver.run_id)
    event, status = next(events)
    assert (event.id, status.state) == (first.id, JobState.RUNNING)

    second = driver.submit("exit_with", b"\7")
    driver.end(second)
    found = {}
    while second.id not in found or not found[second.id].state.is_terminal:
        event, status = next(events)
        found[event.id] = status

    assert found[second.id].exit_code == 7


def test_a_number_that_is_somebody_elses_by_now_is_not_signalled(driver, opened, looking):
    job = driver.ready("wait")
    (found,) = looking.list(driver.run_id)
    journal = rundir.run_root() / driver.run_id / "jobs.jsonl"
    text = journal.read_text()
    pid = job.data["pids"][0]
    # as if the process that was written down had begun at another time
    journal.write_text(text.replace('"start_time":', '"start_time":1'))

    # one that reads it now: what was read before is not read again
    opened(BackendContext()).kill(found)

    # a process that was killed would be gone by the end of another
    driver.end(driver.submit("exit_with", b"\0"))
    assert is_alive(pid)


def test_a_detached_job_is_bound_to_no_process(driver, looking):
    job = driver.submit(["sh", "-c", "echo begun; sleep 1; echo over; exit 5"], detached=True)
    driver.backend.close()
    assert driver.backend.status([job])[0].state is JobState.RUNNING

    assert list(looking.logs(job, follow=True)) == ["begun", "over"]
    assert looking.status([job])[0].exit_code == 5
    assert rundir.describe(rundir.run_root() / driver.run_id)["detached"]
    looking.cleanup(driver.run_id)
    assert looking.list(driver.run_id) == []
