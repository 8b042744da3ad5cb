"""Streams into jobs that cannot dial whoever submitted them."""

# ruff: noqa: D102  a test's name is its sentence

from __future__ import annotations

import contextlib
import secrets
import socket

import pytest

from fiber.exceptions import BackendError
from fiber.model import Job, ReachKind
from fiber.testing import programs
from fiber.testing.kit.driver import Driver
from fiber.testing.kit.platform import Platform

__all__ = ["Streams"]


class Streams(Platform):
    """Tests of ``open_stream``, for backends and settings by which jobs are reached so."""

    def test_undeclared_streams_are_refused(self, kit: Driver) -> None:
        job = kit.submit(programs.sleep_forever())

        self.refuses(kit.backend, "streams", lambda: kit.backend.open_stream(job))

    def test_a_stream_into_a_job_carries_bytes_both_ways(self, kit: Driver) -> None:
        job = self._streamed(kit, programs.echo_streams())
        data = bytes(range(256)) * 4096

        for _ in range(2):
            with self._opened(kit, job) as stream:
                heard = bytearray()
                for begin in range(0, len(data), 1 << 16):
                    stream.sendall(data[begin : begin + (1 << 16)])
                    while len(heard) < min(begin + (1 << 16), len(data)):
                        heard += stream.recv(1 << 16)
                assert bytes(heard) == data

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
            # said at once, which is as good
            return

    def _streamed(self, kit: Driver, program: programs.Argv) -> Job:
        """A job into which streams are opened, that has said ready."""
        self.need(kit.backend, "streams", "follow_logs")
        job = kit.submit(program, ident=secrets.token_hex(4))
        if kit.backend.reach(job).kind is ReachKind.DIRECT:
            pytest.skip("jobs dial their parent here; streams are for those that cannot")
        kit.said_ready(job)
        return job

    def _opened(self, kit: Driver, job: Job) -> socket.socket:
        stream = kit.backend.open_stream(job)
        stream.settimeout(self.patience)
        return stream
