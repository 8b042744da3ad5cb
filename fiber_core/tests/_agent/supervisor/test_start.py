"""A supervisor is started with the interpreter's own options and path, or before it is needed."""

import subprocess
import sys
from pathlib import Path

import pytest

from fiber._agent.supervisor import start
from fiber._agent.supervisor.messages import SupervisorOptions
from fiber._agent.supervisor.start import discard_prestarted, prestart, start_supervisor
from fiber.exceptions import BackendUnavailableError


def options(folder):
    return SupervisorOptions(
        run_id="0badcafe", run_directory=str(folder), master=None, host="here", detached=False
    )


def test_an_interpreter_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(BackendUnavailableError, match="/no/such/python: No such file"):
        start_supervisor(options(tmp_path), executable="/no/such/python")


def test_it_ends_when_its_starter_has_gone(tmp_path):
    channel, process = start_supervisor(options(tmp_path))

    channel.close()

    assert process.wait(30) == 0


@pytest.mark.parametrize("flags", [["-I"], ["-X", "utf8", "-W", "error"]])
def test_options_of_the_interpreter_are_its_own(tmp_path, flags):
    script = tmp_path / "master.py"
    script.write_text(
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from supervised import Supervised\n"
        "with Supervised(Path(sys.argv[1])) as supervised:\n"
        "    sys.exit(supervised.run('exit_with', bytes([7])).exit_code)\n"
    )

    done = subprocess.run(
        [sys.executable, *flags, str(script), str(tmp_path)],
        check=False,
        timeout=50,
        capture_output=True,
    )

    assert (done.returncode, done.stderr) == (7, b"")


def test_standard_streams_may_be_closed(tmp_path):
    script = tmp_path / "master.py"
    script.write_text(
        "import os, sys\n"
        f"sys.path[:] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "for number in range(3): os.close(number)\n"
        "from supervised import Supervised\n"
        "with Supervised(Path(sys.argv[1])) as supervised:\n"
        "    accepted = supervised.submit('tell', b'said all the same')\n"
        "    code = supervised.end(accepted).exit_code\n"
        "    os._exit(9 if supervised.log(accepted) == 'said all the same' else 1)\n"
    )

    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], check=False, timeout=50, capture_output=True
    )

    assert done.returncode == 9


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

    def test_is_not_taken_once_the_module_path_has_changed(self, tmp_path, monkeypatch):
        first = self.started()
        monkeypatch.syspath_prepend(str(tmp_path))
        channel, process = start_supervisor(options(tmp_path))
        assert first.returncode is not None
        assert process is not first
        channel.close()
        assert process.wait(30) == 0

    def test_is_not_taken_where_it_has_ended(self, tmp_path):
        first = self.started()
        first.kill()
        first.wait()
        channel, process = start_supervisor(options(tmp_path))
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
