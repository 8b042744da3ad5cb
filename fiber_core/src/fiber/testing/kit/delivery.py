"""Tests of delivery to jobs: arguments, environment, directory, private bytes, and streams."""

from __future__ import annotations

import contextlib
import logging
import pickle
import secrets
import socket

import pytest

from fiber.exceptions import BackendError
from fiber.model import Job, JobState, ReachKind
from fiber.testing import programs
from fiber.testing.kit.driver import Driver
from fiber.testing.kit.platform import Platform

__all__ = ["Delivery", "Streams"]

# ruff: noqa: D102  a test's name is its sentence


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


# ruff: noqa: D102  a test's name is its sentence


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
        kit.until(job, lambda status: status.state is JobState.RUNNING, "its start")
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
