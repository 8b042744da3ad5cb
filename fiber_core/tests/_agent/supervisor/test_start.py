"""A supervisor is started with the interpreter's own options and path, or before it is needed."""

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fiber._agent.supervisor import start
from fiber._agent.supervisor.messages import SupervisorOptions
from fiber._agent.supervisor.preload import adopt_effects, preload
from fiber._agent.supervisor.start import discard_prestarted, prestart, start_supervisor
from fiber.exceptions import BackendUnavailableError
from supervised import exit_code_of


def options(folder):
    return SupervisorOptions(
        run_id="0badcafe", run_directory=str(folder), master=None, host="here", detached=False
    )


def test_an_interpreter_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(BackendUnavailableError, match="/no/such/python: No such file"):
        start_supervisor(options(tmp_path), executable="/no/such/python")


@pytest.mark.parametrize(
    "error, words",
    [
        (FileNotFoundError(errno.ENOENT, "No such file", os.devnull), "/dev/null: No such file"),
        (BlockingIOError(errno.EAGAIN, "Try again"), "`ulimit -u`"),
        (OSError(errno.EMFILE, "Too many"), "`ulimit -n`"),
    ],
)
def test_the_error_of_a_system_that_starts_none_says_what_is_missing(
    tmp_path, monkeypatch, error, words
):
    def popen(*_arguments, **_options):
        raise error

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(BackendUnavailableError, match=words):
        start_supervisor(options(tmp_path))


def test_it_starts_where_this_process_may_not_enter_its_working_directory(tmp_path, monkeypatch):
    # as after sudo -u; root may enter any
    monkeypatch.setattr(os, "access", lambda *_: False)
    process = start.SupervisorProcess(sys.executable, early=True)
    try:
        assert process.command[-1] == "/"
    finally:
        process.end()


MASTER = """
import os, sys
sys.path[:] = {path!r}
from pathlib import Path
from supervised import Supervised

for number in map(int, sys.argv[2:]):
    os.close(number)
with Supervised(Path(sys.argv[1])) as supervised:
    accepted = supervised.submit("tell", b"said all the same")
    supervised.end(accepted)
    code = 7 if supervised.log(accepted) == "said all the same" else 1
    if sys.argv[2:]:
        # the interpreter would close its streams, and others have their numbers by now
        os._exit(code)
sys.exit(code)
"""


@pytest.mark.parametrize(
    "flags, closed",
    [(["-I"], ()), (["-X", "utf8", "-W", "error"], ()), ([], "012")],
    ids=["isolated", "with options", "without standard streams"],
)
def test_options_of_the_interpreter_are_its_own_and_its_streams_may_be_closed(
    tmp_path, flags, closed
):
    script = tmp_path / "master.py"
    script.write_text(MASTER.format(path=sys.path))

    done = subprocess.run(
        [sys.executable, *flags, script, tmp_path, *closed],
        check=False,
        timeout=50,
        capture_output=True,
    )

    assert (done.returncode, done.stderr) == (7, b"")


class TestOneThatIsStartedEarly:
    @pytest.fixture(autouse=True)
    def _none_left(self):
        yield
        discard_prestarted()

    def started(self):
        prestart()
        return start._prestarted.process

    def test_is_the_one_that_is_started_later(self, tmp_path):
        first = self.started()
        prestart()
        channel, process = start_supervisor(options(tmp_path))
        assert process is first
        channel.close()
        assert process.wait(30) == 0

    def test_is_ended_where_it_is_not_needed(self):
        first = self.started()
        discard_prestarted()
        assert first.returncode is not None

    @pytest.mark.parametrize("why", ["the module path has changed", "it has ended"])
    def test_is_not_taken_any_more_once(self, tmp_path, monkeypatch, why):
        first = self.started()
        if why == "it has ended":
            first.kill()
            first.wait()
        else:
            monkeypatch.syspath_prepend(str(tmp_path))
        channel, process = start_supervisor(options(tmp_path))
        assert first.returncode is not None
        assert process is not first
        channel.close()
        assert process.wait(30) == 0

    def test_ends_with_a_program_that_never_needs_it(self):
        program = (
            f"import sys; sys.path[:] = {sys.path!r}\n"
            "from fiber._agent.supervisor import start\n"
            "start.prestart(); print(start._prestarted.process.pid)"
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program], check=True, capture_output=True
        )
        assert done.stderr == b""
        assert not Path(f"/proc/{int(done.stdout)}").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_has_all_the_descriptors_it_may_have_and_jobs_have_the_usual(make):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = min(soft, 1000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
    try:
        supervised = make()
        accepted = supervised.submit(["bash", "-c", "ulimit -Sn"])
        supervised.end(accepted)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    limits = Path(f"/proc/{supervised.process.pid}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert line.split()[3:5] == [str(hard), str(hard)]
    assert supervised.log(accepted) == f"{lower}\n"


def test_signal_handlers_that_modules_set_are_those_of_forks_alone(tmp_path, monkeypatch):
    (tmp_path / "sets_handlers.py").write_text(
        "import signal\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def check():
        ignored = signal.getsignal(signal.SIGPIPE)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        preload(["sets_handlers"])
        assert signal.getsignal(signal.SIGPIPE) == ignored
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
        adopt_effects()
        assert signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL != ignored
        return 7

    assert exit_code_of(check) == 7


def test_modules_are_imported_and_failures_returned(tmp_path, monkeypatch):
    (tmp_path / "preload_good.py").write_text("value = 1\n")
    (tmp_path / "preload_bad.py").write_text("raise ValueError('no')\n")
    (tmp_path / "preload_exit.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)

    failures = preload(["preload_bad", "preload_exit", "preload_missing", "preload_good"]).failures

    assert sys.modules.pop("preload_good").value == 1
    assert failures["preload_bad"] == "ValueError: no"
    assert failures["preload_exit"] == "SystemExit: 3"
    assert "ModuleNotFoundError" in failures["preload_missing"]
    assert set(failures) == {"preload_bad", "preload_exit", "preload_missing"}
