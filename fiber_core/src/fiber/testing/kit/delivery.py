"""Tests of delivery: to jobs (arguments, environment, directory, private bytes, streams), and of logs."""

# ruff: noqa: D102  a test's name is its sentence

from __future__ import annotations

import contextlib
import logging
import pickle
import secrets
import socket
import time

import pytest

from fiber.exceptions import BackendError
from fiber.model import Job, ReachKind
from fiber.testing import programs
from fiber.testing.kit.platform import Driver, Platform

_HARD = (
    "",
    " ",
    "two words",
    "it's",
    'say "no"',
    "a\\b\\\\",
    "$HOME `id` $(id) ${x} %PATH% !1",
    "*.py ? [a] {a,b} ~",
    "; & | < > # ( )",
    "line one\nline two\n",
    "tab\there",
    "--option=value",
    "ünïcödé ☃ 🐍",
    "{python} {0} %s",
)


class Delivery(Platform):
    """Tests that arguments, environment, directory and private bytes arrive unchanged and unseen."""

    def test_arguments_arrive_as_they_are(self, kit: Driver) -> None:
        assert kit.run(programs.expect_args(*_HARD)).exit_code == 0

    def test_many_long_arguments_arrive(self, kit: Driver) -> None:
        assert kit.run(programs.expect_args(*["x" * 1000] * 20)).exit_code == 0

    def test_the_environment_arrives_as_it_is(self, kit: Driver) -> None:
        values = {f"KIT_{number}": text for number, text in enumerate(_HARD)}

        assert kit.run(programs.expect_env(values), env=values).exit_code == 0

    def test_names_are_removed_from_an_inherited_environment(
        self, kit: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KIT_INHERITED", "x")

        status = kit.run(
            programs.expect_env({"KIT_INHERITED": None}), unset_env=frozenset({"KIT_INHERITED"})
        )

        assert status.exit_code == 0

    def test_local_jobs_inherit_the_environment(
        self, kit: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.skip_unless_declared(kit.backend, "same_host")
        monkeypatch.setenv("KIT_INHERITED", "x")

        assert kit.run(programs.expect_env({"KIT_INHERITED": "x"})).exit_code == 0

    def test_a_job_runs_in_the_directory_that_was_named(self, kit: Driver) -> None:
        # a folder that every system and every image has
        assert kit.run(programs.expect_cwd("/usr"), cwd="/usr").exit_code == 0

    @pytest.mark.parametrize("size", [16, 200_000])
    def test_private_bytes_arrive_and_are_seen_by_nobody_else(
        self, kit: Driver, caplog: pytest.LogCaptureFixture, size: int
    ) -> None:
        secret = secrets.token_hex(size // 2).encode()
        with caplog.at_level(logging.DEBUG):
            spec = kit.spec(programs.expect_private(secret), private=secret)
            job = kit.backend.submit(spec)
            status = kit.end(job)

        assert status.exit_code == 0, "2: they did not arrive; 3: argv or environment has them"
        text = secret.decode()
        assert text not in caplog.text
        for value in (job, spec, status, kit.backend, kit.statuses(job)):
            assert text not in repr(value)
        assert secret not in pickle.dumps(job)

    def test_private_bytes_may_be_any_bytes(self, kit: Driver) -> None:
        private = bytes(range(256)) * 4

        assert kit.run(programs.expect_private(private), private=private).exit_code == 0

    def test_empty_private_bytes_are_not_the_same_as_none(self, kit: Driver) -> None:
        assert kit.run(programs.read_private(), private=b"").exit_code == 0
        assert kit.run(programs.expect_env({"FIBER_BOOTSTRAP": None})).exit_code == 0


class Streams(Platform):
    """Tests of ``open_stream``, for jobs that cannot dial their submitter."""

    def test_undeclared_streams_are_refused(self, kit: Driver) -> None:
        job = kit.submit(programs.sleep_forever())

        self.is_refused(kit.backend, "streams", lambda: kit.backend.open_stream(job))

    def test_a_stream_into_a_job_carries_bytes_both_ways(self, kit: Driver) -> None:
        job = self._streamed(kit, programs.echo_streams())
        data = bytes(range(256)) * 4096

        for _ in range(2):
            with self._opened(kit, job) as stream:
                assert self._echoed(stream, data) == data

    def test_a_stream_ends_where_the_job_ends_it(self, kit: Driver) -> None:
        job = self._streamed(kit, programs.echo_streams())

        with self._opened(kit, job) as stream:
            stream.sendall(b"end")
            assert stream.recv(1) == b""

    def test_streams_end_with_their_job(self, kit: Driver) -> None:
        job = self._streamed(kit, programs.echo_streams())

        with self._opened(kit, job) as stream:
            kit.backend.kill(job)
            kit.end(job)
            with contextlib.suppress(ConnectionError):
                assert stream.recv(1) == b""

    def test_where_nobody_listens_a_stream_ends_or_is_refused(self, kit: Driver) -> None:
        job = self._streamed(kit, programs.sleep_forever())

        try:
            with kit.backend.open_stream(job) as stream:
                stream.settimeout(self.patience)
                with contextlib.suppress(ConnectionError):
                    assert stream.recv(1) == b""
        except BackendError:
            # refusing at once is equally right
            return

    def _streamed(self, kit: Driver, program: programs.Argv) -> Job:
        """Start a job for streams, and wait until it is ready."""
        self.skip_unless_declared(kit.backend, "streams", "follow_logs")
        job = kit.submit(program, ident=secrets.token_hex(4))
        if kit.backend.reach(job).kind is ReachKind.DIRECT:
            pytest.skip("jobs dial their parent here; streams are for those that cannot")
        kit.wait_ready(job)
        # streams are opened into jobs that are reported to run, which may be later
        kit.wait_running(job)
        return job

    def _echoed(self, stream: socket.socket, data: bytes) -> bytes:
        """Send data in pieces, each once the last one has come back; returns what came back."""
        size = 1 << 16
        received = bytearray()
        for begin in range(0, len(data), size):
            sent = min(begin + size, len(data))
            try:
                stream.sendall(data[begin:sent])
                while len(received) < sent:
                    fresh = stream.recv(size)
                    assert fresh, f"the stream ended after {len(received)} of {sent} bytes"
                    received += fresh
            except TimeoutError:
                msg = f"{len(received)} of {sent} bytes came back within {self.patience:g} s"
                raise AssertionError(msg) from None
        return bytes(received)

    def _opened(self, kit: Driver, job: Job) -> socket.socket:
        stream = kit.backend.open_stream(job)
        stream.settimeout(self.patience)
        return stream


class Output(Platform):
    """Tests of the lines that jobs write."""

    def test_undeclared_logs_are_refused(self, kit: Driver) -> None:
        job = kit.submit(programs.exit_with(0))

        self.is_refused(kit.backend, "logs", lambda: list(kit.backend.logs(job)))

    def test_undeclared_following_is_refused(self, kit: Driver) -> None:
        job = kit.submit(programs.exit_with(0))

        self.is_refused(
            kit.backend, "follow_logs", lambda: list(kit.backend.logs(job, follow=True))
        )

    def test_ten_thousand_lines_come_complete_and_in_order(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "logs")
        job = kit.submit(programs.print_lines(10_000))
        kit.end(job)

        assert list(kit.backend.logs(job)) == [f"line {number}" for number in range(10_000)]

    def test_the_tail_is_the_last_lines(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "logs")
        job = kit.submit(programs.print_lines(20))
        kit.end(job)

        assert list(kit.backend.logs(job, tail=3)) == ["line 17", "line 18", "line 19"]
        assert len(list(kit.backend.logs(job, tail=100))) == 20
        assert list(kit.backend.logs(job, tail=0)) == []

    def test_following_ends_with_the_job(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "follow_logs")
        job = kit.submit(programs.print_lines(10_000))

        lines = list(kit.backend.logs(job, follow=True))

        assert lines == [f"line {number}" for number in range(10_000)]
        assert kit.end(job).exit_code == 0

    def test_lines_come_while_the_job_runs(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "follow_logs")
        job = kit.ready(programs.sleep_forever())

        assert list(kit.backend.logs(job)) == ["ready"]
        assert not kit.backend.status([job])[0].state.is_terminal

    def test_following_goes_on_from_the_tail(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "follow_logs")
        job = kit.ready(programs.exit_on_sigterm(0))

        lines = kit.backend.logs(job, tail=0, follow=True)
        kit.backend.terminate(job, grace=kit.patience)

        assert list(lines) == []

    def test_both_outputs_are_logs(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "logs")
        job = kit.submit(programs.print_text(b"to stdout\n", b"to stderr\n"))
        kit.end(job)

        assert sorted(kit.backend.logs(job)) == ["to stderr", "to stdout"]

    def test_lines_of_all_kinds_come_as_they_are(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "logs")
        long = "x" * 50_000
        text = f"\n  indented\n\nünïcödé ☃\n{long}\nno newline at the end"
        job = kit.submit(programs.print_text(text.encode()))
        kit.end(job)

        assert list(kit.backend.logs(job)) == text.split("\n")

    def test_bytes_that_are_no_text_break_nothing(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "logs")
        job = kit.submit(programs.print_text(b"before\n\xff\xfe\nafter\n"))
        kit.end(job)

        lines = list(kit.backend.logs(job))

        assert len(lines) == 3
        assert (lines[0], lines[2]) == ("before", "after")

    def test_a_job_that_wrote_nothing_has_no_lines(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "logs")
        job = kit.submit(programs.exit_with(0))
        kit.end(job)

        assert list(kit.backend.logs(job)) == []

    def test_output_comes_to_the_submitter_as_it_was_written(
        self, kit: Driver, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.skip_unless_declared(kit.backend, "output")
        capfd.readouterr()

        kit.run(programs.print_text("to ünïcödé stdout\n".encode(), b"to stderr, no newline"))

        assert _captured(capfd, kit, len("to stderr, no newline")) == (
            "to ünïcödé stdout\n",
            "to stderr, no newline",
        )

    def test_lines_can_have_the_name_of_their_job_before_them(
        self, kit: Driver, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.skip_unless_declared(kit.backend, "output")
        capfd.readouterr()
        text = programs.print_text(b"one\ntwo\n", b"three\n")

        kit.run(text, name="the job", log_prefix=True)

        out, err = _captured(capfd, kit, len("[the job] three\n"), lines=2)
        assert out == "[the job] one\n[the job] two\n"
        assert err == "[the job] three\n"

    def test_a_prefix_is_for_the_terminal_and_not_in_the_logs(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "logs")
        job = kit.submit(programs.print_text(b"one\ntwo\n"), name="the job", log_prefix=True)
        kit.end(job)

        assert list(kit.backend.logs(job)) == ["one", "two"]

    def test_lines_of_many_jobs_are_not_mixed(
        self, kit: Driver, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.skip_unless_declared(kit.backend, "output")
        capfd.readouterr()
        jobs = [kit.submit(programs.print_text(f"{n:02}".encode() * 500 + b"\n")) for n in range(8)]
        jobs.append(kit.submit(programs.print_text(b"", b"x")))
        for job in jobs:
            kit.end(job)

        out, _ = _captured(capfd, kit, 1, lines=8)
        assert sorted(out.split()) == [f"{n:02}" * 500 for n in range(8)]

    def test_a_detached_job_writes_to_its_log_only(
        self, kit: Driver, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.skip_unless_declared(kit.backend, "output", "detached")
        capfd.readouterr()

        kit.run(programs.print_text(b"detached\n"), detached=True)
        kit.run(programs.print_text(b"attached\n", b"x"))

        assert _captured(capfd, kit, 1) == ("attached\n", "x")


def _captured(
    capfd: pytest.CaptureFixture[str], kit: Driver, errors: int, *, lines: int = 1
) -> tuple[str, str]:
    """Wait for output on our own descriptors; returns it once there are so many lines and errors."""
    out = err = ""
    deadline = time.monotonic() + kit.patience
    while time.monotonic() < deadline and (out.count("\n") < lines or len(err) < errors):
        # there is no event for output to our own descriptors
        time.sleep(0.01)
        captured = capfd.readouterr()
        out, err = out + captured.out, err + captured.err
    return out, err
