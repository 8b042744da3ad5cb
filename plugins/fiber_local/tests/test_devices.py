"""Devices of this host are looked for once."""

import pickle
import sys

import pytest

from fiber.exceptions import ResourceError
from fiber.testing import FakeProvider
from fiber_local.devices import HostDevices


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
    class Flaky(FakeProvider):
        def probe(self):
            return (sys.executable, "-c", "raise SystemExit('no driver')")

    devices = HostDevices({"fake": Flaky()})
    for _ in range(2):
        with pytest.raises(ResourceError, match="no driver"):
            devices.find("fake")
