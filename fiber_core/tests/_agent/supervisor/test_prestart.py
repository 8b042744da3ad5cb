"""A supervisor that is started before it is known to be needed is used, or ended."""

import pathlib
import subprocess
import sys

import pytest

from fiber._agent.supervisor import start
from fiber._agent.supervisor.messages import SupervisorOptions
from fiber._agent.supervisor.start import discard_prestarted, prestart, start_supervisor


def options(folder):
    return SupervisorOptions(
        run_id="0badcafe", run_directory=str(folder), master=None, host="here", detached=False
    )


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
        assert not pathlib.Path(f"/proc/{int(done.stdout)}").exists()
