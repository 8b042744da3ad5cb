"""A run's folder, its job script and the program that runs jobs on nodes; without a batch system."""

import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from fiber.backend_parts.batch.folder import RunFolder, Submitted
from fiber.backend_parts.batch.system import script
from fiber.backend_parts.liveness import Liveness
from fiber.exceptions import BackendError
from fiber.model import JobSpec, Reason, ReasonKind

RUN = "0badcafe"
ODD = {"A": "two\nlines", "odd-name": "it's $HOME `id`", "B": "ünï ☃", "EMPTY": ""}


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "a folder's", RUN)
    made.create()
    yield made
    made.remove()


def run(folder, *argv, key="k-0", prologue="", env=(), host_variable="", **more):
    """Run a job's script as a node does; its exit code."""
    spec = JobSpec(run_id=RUN, name="job", argv=argv, **more)
    folder.add(key, spec, dict(env), host_variable=host_variable)
    text = script(folder.path, key[:-1], "", python=sys.executable, prologue=prologue)
    path = folder.path / "script"
    path.write_text(text)
    path.chmod(0o700)
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/", "NODE": "node-7"}
    return subprocess.run([path], env=environ, check=False).returncode


def python(code, *words):
    return (sys.executable, "-I", "-S", "-c", code, *words)


class TestJobs:
    def test_everything_arrives_as_it_is_and_the_output_is_in_the_log(self, folder):
        code = "import os, sys; print(os.getcwd(), sys.argv[1:], [os.environ[n] for n in %r])"

        ended = run(folder, *python(code % list(ODD), "", "a b", "$x"), env=ODD, cwd="/usr")

        assert ended == 0
        assert folder.log("k-0").read_text() == (
            f"/usr {['', 'a b', '$x']} {[ODD[name] for name in ODD]}\n"
        )
        mark = folder.mark("k-0")
        assert (mark.ended.code, mark.host) == (0, os.uname().nodename)
        assert dict(folder.marks()).keys() == {"k-0"}

    def test_a_nodes_name_is_the_systems_where_it_has_one(self, folder):
        for key, variable in (("k-0", "NODE"), ("l-0", "NONE")):
            run(folder, "true", key=key, host_variable=variable)

        assert folder.mark("k-0").host == "node-7"
        assert folder.mark("l-0").host == os.uname().nodename

    @pytest.mark.parametrize(
        "code, shown, reason",
        [
            ("raise SystemExit(7)", 7, Reason(ReasonKind.EXIT, 7)),
            ("import os; os.kill(os.getpid(), 9)", -9, Reason(ReasonKind.SIGNAL, signal.SIGKILL)),
        ],
    )
    def test_ends_are_exact(self, folder, code, shown, reason):
        run(folder, *python(code))

        ended = folder.mark("k-0").ended
        assert (ended.code, ended.reason) == (shown, reason)

    @pytest.mark.parametrize("argv, cwd", [(("/no/such",), "/"), (("true",), "/no/such")])
    def test_what_cannot_be_started_says_so(self, folder, argv, cwd):
        run(folder, *argv, cwd=cwd)

        mark = folder.mark("k-0")
        assert mark.ended.reason == Reason(ReasonKind.START)
        assert "/no/such" in mark.ended.message
        assert mark.host is None

    def test_one_that_names_no_directory_is_where_its_submitter_is_or_at_home(
        self, folder, tmp_path, monkeypatch
    ):
        (tmp_path / "project").mkdir()
        monkeypatch.chdir(tmp_path / "project")
        code = "import os; print(os.getcwd())"

        run(folder, *python(code))
        run(folder, *python(code), key="l-0", prologue=f"rmdir {tmp_path}/project")

        assert folder.log("k-0").read_text() == f"{tmp_path}/project\n"
        assert folder.log("l-0").read_text() == "/\n"

    def test_private_bytes_are_in_a_file_of_its_own_and_gone_once_read(self, folder):
        code = "import os; p = os.environ['FIBER_BOOTSTRAP'][5:]; print(open(p, 'rb').read() == b'\\0x'); os.unlink(p)"

        run(folder, *python(code), private=b"\0x")

        assert folder.log("k-0").read_text() == "True\n"
        assert not list((folder.path / "private").iterdir())

    def test_lines_of_the_site_run_before_the_job_and_keep_what_they_set(self, folder):
        prologue = "export LICENSE='of us'\nPATH=/opt/x:$PATH"
        code = "import os; print(os.environ['LICENSE'], '/opt/x' in os.environ['PATH'])"

        run(folder, *python(code), prologue=prologue)

        assert folder.log("k-0").read_text().endswith("of us True\n")


class TestFiles:
    def test_nobody_else_can_read_anything(self, folder):
        folder.add("k-0", JobSpec(run_id=RUN, name="x", argv=("x",), private=b"s"), {})

        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        for name in ("jobs/k-0.json", "private/k-0"):
            assert stat.S_IMODE((folder.path / name).stat().st_mode) == 0o600
        folder.forget("k-0")
        assert not (folder.path / "private" / "k-0").exists()

    def test_what_was_submitted_is_read_by_others_as_it_grows(self, folder):
        reader = RunFolder(folder.path.parent, RUN)
        first = Submitted(id="1", key="a-0", name="one", argv=("x", "y"), at=1.0)
        second = Submitted(id="2", key="b-0", name="two", detached=True)

        folder.submitted([first])
        assert reader.jobs() == [first]
        folder.submitted([second])
        assert reader.jobs() == [first, second]
        assert [one.run_id for one in RunFolder.all(folder.path.parent)] == [RUN]

    def test_the_program_that_made_it_lives_and_its_sign_changes(self, folder):
        reader = RunFolder(folder.path.parent, RUN)
        folder.renew(1)
        before = reader.renewed()
        folder.renew(2)

        assert reader.liveness() is Liveness.ALIVE
        assert before != reader.renewed() != ""

    def test_a_mark_that_is_cut_or_foreign_is_none(self, folder):
        (folder.path / "marks" / "k-0.started").write_text(json.dumps([1])[:1])
        (folder.path / "marks" / "k-0.ended").write_text("fiber: exit x\n")

        assert folder.mark("k-0").ended is None
        assert folder.mark("k-0").host is None

    def test_it_can_be_made_again_while_jobs_run_in_it(self, folder):
        again = RunFolder(folder.path.parent, RUN)
        program = (folder.path / "node.py").open()
        with program:
            again.create()

            assert "def main" in program.read()
        assert again.liveness() is Liveness.ALIVE
        again.release()

    def test_a_folder_that_cannot_be_made_is_named(self, tmp_path):
        (tmp_path / "file").write_text("")

        with pytest.raises(BackendError, match="file/0badcafe"):
            RunFolder(tmp_path / "file", RUN).create()
