"""Tests of optional features: exec, copies, images, volumes, limits, devices; and of queries."""

# ruff: noqa: D102  a test's name is its sentence

from __future__ import annotations

import io
from pathlib import Path

import attrs
import pytest

from fiber.exceptions import BackendError, ResourceError
from fiber.model import Capacity, Check, JobState, Reach, ReachKind, ResourceRequest, Volume
from fiber.testing import programs
from fiber.testing.kit.driver import Driver
from fiber.testing.kit.platform import Platform

__all__ = ["Options"]


class Options(Platform):
    """Tests of features gated by capabilities, and of capacity, reach and checks."""

    def test_undeclared_exec_is_refused(self, kit: Driver) -> None:
        job = kit.submit(programs.sleep_forever())

        self.is_refused(kit.backend, "exec", lambda: kit.backend.exec(job, ["true"]))

    def test_exec_returns_the_exit_code_and_keeps_arguments(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "exec", "follow_logs")
        job = kit.ready(programs.sleep_forever())

        for argv, code in (
            (programs.exit_with(7), 7),
            (programs.expect_args("two words", "", 'it\'s "$HOME"\n'), 0),
        ):
            assert kit.backend.exec(job, [self.python, *argv[1:]]) == code

    def test_exec_writes_to_our_output(
        self, kit: Driver, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.skip_unless_declared(kit.backend, "exec", "follow_logs")
        job = kit.ready(programs.sleep_forever())
        capfd.readouterr()

        kit.backend.exec(job, [self.python, *programs.print_lines(3)[1:]])

        # the job's own output may arrive in between
        out = capfd.readouterr().out.removeprefix("ready\n")
        assert out.split("\n") == ["line 0", "line 1", "line 2", ""]

    def test_exec_reads_what_it_is_given(self, kit: Driver, tmp_path: Path) -> None:
        self.skip_unless_declared(kit.backend, "exec", "follow_logs")
        job = kit.ready(programs.sleep_forever())
        code = "import sys; sys.exit(sys.stdin.buffer.read() != b'a\\0b')"

        (tmp_path / "stdin").write_bytes(b"a\0b")
        with (tmp_path / "stdin").open("rb") as file:
            assert kit.backend.exec(job, [self.python, "-c", code], stdin=file) == 0
        # a stream without a descriptor does as well
        assert kit.backend.exec(job, [self.python, "-c", code], stdin=io.BytesIO(b"a\0b")) == 0

    def test_undeclared_copying_is_refused(self, kit: Driver, tmp_path: Path) -> None:
        self.is_refused(kit.backend, "copy", lambda: kit.backend.copy(str(tmp_path), "claim:/x"))

    def test_files_go_to_a_volume_and_come_back(
        self, kit: Driver, volume: Volume, tmp_path: Path
    ) -> None:
        self.skip_unless_declared(kit.backend, "copy")
        (tmp_path / "a").write_bytes(bytes(range(256)))

        kit.backend.copy(str(tmp_path / "a"), f"{volume.source}:kit/a")
        kit.backend.copy(f"{volume.source}:kit/a", str(tmp_path / "b"))

        assert (tmp_path / "b").read_bytes() == bytes(range(256))

    def test_undeclared_volumes_are_refused(self, kit: Driver) -> None:
        spec = kit.spec(programs.exit_with(0), volumes=(Volume(source="kit", path="/persistent"),))

        self.is_refused(kit.backend, "volumes", lambda: self.submit(kit.backend, spec))

    def test_what_one_job_writes_to_a_volume_the_next_one_reads(
        self, kit: Driver, volume: Volume
    ) -> None:
        self.skip_unless_declared(kit.backend, "volumes")
        file = f"{volume.path}/{kit.run_id}"
        text = "kept\n"

        assert kit.run(programs.write_file(file, text), volumes=(volume,)).exit_code == 0
        assert kit.run(programs.expect_file(file, text), volumes=(volume,)).exit_code == 0
        closed = attrs.evolve(volume, read_only=True)
        assert kit.run(programs.write_file(file, "x"), volumes=(closed,)).exit_code != 0

    def test_undeclared_images_are_refused(self, kit: Driver, tmp_path: Path) -> None:
        self.is_refused(kit.backend, "images", lambda: kit.backend.prepare_image(str(tmp_path)))

    def test_a_built_image_runs(self, kit: Driver, image_context: str) -> None:
        self.skip_unless_declared(kit.backend, "images")

        image = kit.backend.prepare_image(image_context)

        assert image is not None
        assert kit.run(programs.exit_with(0), image=image).state is JobState.SUCCEEDED

    def test_a_job_that_exceeds_its_memory_does_not_succeed(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "memory_limit")
        limit = ResourceRequest(memory=128)

        assert kit.run(programs.allocate(16), resources=limit).state is JobState.SUCCEEDED
        state = kit.run(programs.allocate(512), resources=limit).state

        if state is JobState.SUCCEEDED:
            self.skip_where_missing(kit.backend, "memory_limit")
        assert state is JobState.FAILED

    def test_a_job_uses_no_more_than_its_cpus(self, kit: Driver) -> None:
        self.skip_unless_declared(kit.backend, "cpu_limit", "logs")
        job = kit.submit(programs.burn(4, 2.0), resources=ResourceRequest(cpu=0.5))
        kit.end(job)

        (used,) = kit.backend.logs(job)

        # quotas are kept on average; a busy machine makes it less, never more
        most = 0.5 * 1.5
        if float(used) >= most:
            self.skip_where_missing(kit.backend, "cpu_limit")
        assert float(used) < most

    def test_undeclared_devices_are_refused(self, kit: Driver) -> None:
        spec = kit.spec(programs.exit_with(0), resources=ResourceRequest(devices={"gpu": 1}))

        self.is_refused(kit.backend, "devices", lambda: self.submit(kit.backend, spec))

    def test_devices_are_granted_and_come_back(self, kit: Driver) -> None:
        kind, count, most = self._some_devices(kit)
        as_many_as_it_can_have = ResourceRequest(devices={kind: most})

        for _ in range(count // most + 1):
            # the last one gets them only if the others gave them back
            status = kit.run(programs.exit_with(0), resources=as_many_as_it_can_have)
            assert status.exit_code == 0
        assert kit.backend.capacity().devices[kind] == count

    def test_a_job_waits_for_devices_that_others_hold(self, kit: Driver) -> None:
        kind, count, most = self._some_devices(kit)
        as_many_as_it_can_have = ResourceRequest(devices={kind: most})
        holders = [
            kit.submit(programs.sleep_forever(), resources=as_many_as_it_can_have)
            for _ in range(count // most)
        ]
        for holder in holders:
            kit.until(holder, lambda status: status.state is JobState.RUNNING, "running")

        waiting = kit.submit(programs.exit_with(3), resources=as_many_as_it_can_have)

        assert kit.backend.status([waiting])[0].state is JobState.PENDING
        kit.backend.kill(holders[0])
        assert kit.end(waiting).exit_code == 3

    def test_more_devices_than_there_are_is_an_error(self, kit: Driver) -> None:
        kind, _, _ = self._some_devices(kit)
        spec = kit.spec(programs.exit_with(0), resources=ResourceRequest(devices={kind: 10_000}))

        with pytest.raises((BackendError, ResourceError), match="10000"):
            kit.backend.submit(spec)

    def _some_devices(self, kit: Driver) -> tuple[str, int, int]:
        """A kind of devices, how many the platform has, and how many of them one job can have."""
        self.skip_unless_declared(kit.backend, "devices")
        for kind, count in {**kit.backend.capacity().devices, **self.devices}.items():
            if count:
                return kind, count, self.devices_per_job.get(kind, count)
        pytest.skip("the platform has no devices")

    def test_capacity_is_positive_or_unknown(self, kit: Driver) -> None:
        capacity = kit.backend.capacity()

        assert isinstance(capacity, Capacity)
        assert capacity.cpus is None or capacity.cpus > 0
        assert capacity.memory is None or capacity.memory > 0
        assert all(count >= 0 for count in capacity.devices.values())

    def test_reach_says_how_a_job_and_its_parent_meet(self, kit: Driver) -> None:
        job = kit.submit(programs.sleep_forever())

        reach = kit.backend.reach(job)

        assert isinstance(reach, Reach)
        assert reach.kind is ReachKind.DIRECT or reach.why, "say why it is not direct"
        if self.declared(kit.backend).same_host:
            assert reach.kind is ReachKind.DIRECT

    def test_check_finds_a_platform_that_works(self, kit: Driver) -> None:
        checks = list(kit.backend.check())

        assert checks
        assert all(isinstance(check, Check) and check.name for check in checks)
        assert all(check.fix for check in checks if not check.ok), checks
