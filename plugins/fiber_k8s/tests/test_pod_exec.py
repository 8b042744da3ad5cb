"""Programs run by exec: their streams and exit codes, as recorded from a real cluster."""

import io
import threading

import pytest

from fiber.exceptions import BackendError, UnknownJobError
from fiber.model import Job
from fiber_k8s import websocket_frames
from fiber_k8s.pod_exec import execute, exit_code_of
from k8s_site import set_durations
from k8s_world import recorded


def statuses(name):
    """Messages of the status channel, by the recording's name."""
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
def test_exit_codes_are_those_of_shells(stream, code):
    found, words = exit_code_of(statuses("logs-exec/04-exec")[stream])
    assert found == code
    assert bool(words) is (code in (126, 127))


@pytest.mark.parametrize("said", [b"", b"[]", b"nonsense", b'{"status": "Failure"}'])
def test_nonsense_is_no_exit_code(said):
    with pytest.raises(BackendError):
        exit_code_of(said)


class TestOnACluster:
    """With hollow pods, whose programs write their arguments and their input."""

    @pytest.fixture
    def job(self, site, backend):
        job = site.start(backend)
        backend.recorder.running(job)
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

        def encode_frame(opcode, *pieces):
            if opcode == websocket_frames.PING:
                pings.release()
            return websocket_frames.encode_frame(opcode, *pieces)

        class Slow:
            pieces = iter([b"at last", b""])

            def read(self, _):
                assert all(pings.acquire(timeout=30) for _ in range(2))
                return next(self.pieces)

        monkeypatch.setattr("fiber_k8s.pod_exec.encode_frame", encode_frame)
        set_durations(backend, ping=0.05)
        assert self.run(backend, job, ["cat"], stdin=Slow()) == (0, b"cat\nat last")

    def test_a_terminal_is_given(self, backend, job):
        assert self.run(backend, job, ["vi"], tty=True)[0] == 0

    def test_the_backend_writes_it_here(self, backend, job, capfd):
        assert backend.exec(job, ["hello"]) == 0
        assert capfd.readouterr().out == "hello\n"

    def test_a_missing_pod_is_unknown(self, backend):
        nobody = Job(id="nobody", name="nobody", run_id=backend.run, backend="k8s")
        with pytest.raises(UnknownJobError, match="nobody"):
            backend.exec(nobody, ["true"])
