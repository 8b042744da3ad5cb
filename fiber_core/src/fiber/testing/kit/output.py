"""Tests of logs: complete, in order, the tail, and followed while they are written."""

# ruff: noqa: D102  a test's name is its sentence

from __future__ import annotations

import time

import pytest

from fiber.testing import programs
from fiber.testing.kit.driver import Driver
from fiber.testing.kit.platform import Platform

__all__ = ["Output"]


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
