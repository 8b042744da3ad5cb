"""Programs beside a job: their streams, and how they ended, as a real cluster tells it."""

import io
import threading

import pytest

from fiber.exceptions import BackendError, UnknownJobError
from fiber.model import Job
from fiber_k8s import websocket
from fiber_k8s.execution import code_of, execute
from k8s_world import recorded


def statuses(name):
    """What the status channel said, by the stream's name."""
    found = {}
    for line in recorded(name):
        if line["type"] == "ws-recv" and line.get("channel") == 3:
            found[line["stream"]] = line["text"].encode()
    return found


@pytest.mark.parametrize(
    "stream,code",
    [
        ("exit 0, v5", 0),
        ("exit 3, v5", 3),
        ("exit 3, v4", 3),
        ("killed by SIGKILL", 137),
        ("exit 255", 255),
        ("command not found", 127),
        ("not executable", 126),
    ],
)
def test_a_program_ends_as_a_shell_would_tell(stream, code):
    found, words = code_of(statuses("logs-exec/04-exec")[stream])
    assert found == code
    assert bool(words) is (code in (126, 127))


@pytest.mark.parametrize("said", [b"", b"[]", b"nonsense", b'{"status": "Failure"}'])
def test_nonsense_is_no_exit_code(said):
    with pytest.raises(BackendError):
        code_of(said)


class TestOnACluster:
    """Of hollow pods, where a program writes its words and what it reads."""

    @pytest.fixture
    def job(self, site, backend):
        job = site.start(backend)
        backend.told.running(job)
        return job

    def run(self, backend, job, argv, **more):
        heard = io.BytesIO()
        code = execute(
            backend._client, job.id, argv, write=lambda _, data: heard.write(data), **more
        )
        return code, heard.getvalue()

    def test_words_arrive_as_they_are(self, backend, job):
        argv = ["two words", "it's", '"$HOME"', "ü&=?%"]
        assert self.run(backend, job, argv) == (0, " ".join(argv).encode() + b"\n")

    def test_what_it_is_given_is_read_to_the_end(self, backend, job):
        data = bytes(range(256)) * 4000
        code, heard = self.run(backend, job, ["cat"], stdin=io.BytesIO(data))
        assert (code, heard) == (0, b"cat\n" + data)

    def test_balancers_are_shown_that_a_quiet_connection_is_in_use(self, backend, job, monkeypatch):
        pings = threading.Semaphore(0)

        def frame(opcode, *pieces):
            if opcode == websocket.PING:
                pings.release()
            return websocket.frame(opcode, *pieces)

        class Slow:
            pieces = iter([b"at last", b""])

            def read(self, _):
                assert all(pings.acquire(timeout=30) for _ in range(2))
                return next(self.pieces)

        monkeypatch.setattr("fiber_k8s.execution.frame", frame)
        monkeypatch.setattr("fiber_k8s.execution._SILENCE", 0.05)
        assert self.run(backend, job, ["cat"], stdin=Slow()) == (0, b"cat\nat last")

    def test_a_terminal_is_given(self, backend, job):
        assert self.run(backend, job, ["vi"], tty=True)[0] == 0

    def test_the_backend_writes_it_here(self, backend, job, capfd):
        assert backend.exec(job, ["hello"]) == 0
        assert capfd.readouterr().out == "hello\n"

    def test_a_pod_that_is_not_there_is_unknown(self, backend):
        nobody = Job(id="nobody", name="nobody", run_id=backend.run, backend="k8s")
        with pytest.raises(UnknownJobError, match="nobody"):
            backend.exec(nobody, ["true"])
