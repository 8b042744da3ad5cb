"""Devices of this host, and the doctor's checks of it."""

import pickle
import sys

import pytest

from fiber._agent import rundir
from fiber.exceptions import FiberError, ResourceError
from fiber.model import JobState, JobStatus, Timing
from fiber.testing import FakeProvider
from fiber_local import checks
from fiber_local.checks import run_checks
from fiber_local.devices import HostDevices


class Broken(FakeProvider):
    """One whose probe fails."""

    def probe(self):
        return (sys.executable, "-c", "raise SystemExit('no driver')")


class Counted(FakeProvider):
    """Counts how often it is asked for its probe."""

    asked = 0

    def probe(self):
        type(self).asked += 1
        return super().probe()


def test_a_kind_is_looked_for_once(monkeypatch):
    monkeypatch.setattr(Counted, "asked", 0)
    devices = HostDevices({"fake": Counted(3)})
    assert devices.known() == {}

    assert [device.id for device in devices.find("fake")] == ["F-0", "F-1", "F-2"]
    devices.find("fake")

    assert Counted.asked == 1
    assert devices.known() == {"fake": 3}


def test_an_unknown_kind_names_those_that_are_installed():
    with pytest.raises(ResourceError, match="'gpu' devices is installed; installed are: fake"):
        HostDevices({"fake": FakeProvider()}).find("gpu")
    with pytest.raises(ResourceError, match="installed are: none"):
        HostDevices({}).find("gpu")


def test_an_offer_has_devices_and_providers():
    devices, providers = HostDevices({"fake": FakeProvider(2)}).offer(["fake"])

    assert [device.index for device in devices] == [0, 1]
    assert pickle.loads(providers["fake"]) == FakeProvider(2)


def test_a_probe_that_fails_is_reported_and_tried_again():
    devices = HostDevices({"fake": Broken()})
    for _ in range(2):
        with pytest.raises(ResourceError, match="no driver"):
            devices.find("fake")


def found(**changes):
    return {
        check.name: check
        for check in run_checks(**{"providers": {}, "timing": Timing(), **changes})
    }


def test_a_sound_host_passes():
    result = found(providers={"fake": FakeProvider(2)})

    assert all(check.ok for check in result.values()), result
    assert "its exit code came back" in result["a job from start to end"].detail
    assert result["fake devices"].detail == "Fake, Fake"
    assert (result["limits"].missing == ()) == ("are enforced" in result["limits"].detail)
    assert list(rundir.run_root().glob("check-*")) == []


def test_a_host_without_devices_is_reported():
    check = checks._check_devices(HostDevices({"fake": FakeProvider(0)}), "fake")

    assert (check.ok, check.detail) == (True, "none on this host")


def test_a_broken_probe_is_named_with_what_to_do():
    check = checks._check_devices(HostDevices({"fake": Broken()}), "fake")

    assert not check.ok
    assert "no driver" in check.detail
    assert "by hand" in check.fix


def test_run_directories_that_cannot_be_had_are_named_with_what_to_do(monkeypatch):
    def refuse():
        msg = "/run/x is open to other users"
        raise FiberError(msg)

    monkeypatch.setattr(checks.rundir, "run_root", refuse)
    check = found()["run directories"]

    assert not check.ok
    assert check.detail == "/run/x is open to other users"
    assert "XDG_RUNTIME_DIR" in check.fix


@pytest.mark.parametrize("code", [0, 1])
def test_a_job_that_ends_otherwise_is_a_fault(code):
    status = JobStatus(state=JobState.FAILED, exit_code=code, message=f"ended with {code}")

    check = checks._judge_job("a job", status, 1.0)

    assert not check.ok
    assert f"it was to exit with 42 and ended with {code}" in check.detail
    assert check.fix


def test_limits_that_are_not_enforced_are_no_fault_and_have_a_fix():
    warnings = {"memory_limit": ["no cgroup"], "cpu_limit": []}
    (check,) = checks._judge_limits(warnings)

    assert check.ok
    assert check.missing == ("memory_limit",)
    assert "no cgroup" in check.detail
    assert "Delegate=yes" in check.fix
