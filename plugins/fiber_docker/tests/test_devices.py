"""Devices are granted to one job at a time, and asked for as engines understand it."""

import pytest

from fiber.exceptions import ResourceError
from fiber.model import Device, ResourceRequest
from fiber_docker.devices import Devices, request_for


class Provider:
    kind = "gizmo"
    device_class = "maker.com/gizmo"


@pytest.fixture
def devices():
    made = Devices(None, {"gizmo": Provider()}, "python3")
    found = tuple(Device(kind="gizmo", id=f"G{n}", index=n) for n in range(2))
    made._probe = lambda provider, image: found
    return made


def request(count):
    return ResourceRequest(devices={"gizmo": count})


def test_an_engine_with_a_driver_of_the_maker_is_asked_by_its_name():
    assert request_for("maker.com/gizmo", ["G0"], ()) == {
        "Driver": "maker",
        "Capabilities": [["gizmo"]],
        "DeviceIDs": ["G0"],
    }


def test_a_probe_requests_all_devices():
    assert request_for("maker.com/gizmo", None, ())["Count"] == -1


def test_an_engine_that_lists_the_devices_is_asked_by_their_full_names():
    listed = ("maker.com/gizmo=0", "maker.com/gizmo=all")

    assert request_for("maker.com/gizmo", ["G0"], listed) == {
        "Driver": "cdi",
        "DeviceIDs": ["maker.com/gizmo=G0"],
    }


def test_a_job_without_devices_does_not_wait(devices):
    got = []

    assert devices.grant("a", ResourceRequest(), got.append)
    assert got == [()]


def test_a_job_waits_until_devices_are_free(devices):
    devices.probe(request(2), "img")
    got = []
    assert devices.grant("a", request(2), lambda requests: got.append(("a", requests)))

    assert not devices.grant("b", request(1), lambda requests: got.append(("b", requests)))
    assert [name for name, _ in got] == ["a"]
    devices.release("a")

    assert [name for name, _ in got] == ["a", "b"]
    assert got[1][1][0]["DeviceIDs"] == ["G0"]
    assert devices.free_counts() == {"gizmo": 1}


def test_first_come_is_first_served_also_where_a_later_one_would_fit(devices):
    devices.probe(request(2), "img")
    got = []
    devices.grant("a", request(1), lambda _: got.append("a"))
    devices.grant("b", request(2), lambda _: got.append("b"))
    devices.grant("c", request(1), lambda _: got.append("c"))
    assert got == ["a"]

    devices.release("a")
    assert got == ["a", "b"]
    devices.release("b")
    assert got == ["a", "b", "c"]


def test_one_that_gave_up_waiting_is_forgotten(devices):
    devices.probe(request(2), "img")
    got = []
    devices.grant("a", request(2), lambda _: got.append("a"))
    devices.grant("b", request(2), lambda _: got.append("b"))

    devices.release("b")
    devices.release("a")

    assert got == ["a"]
    assert devices.free_counts() == {"gizmo": 2}


def test_more_than_there_are_is_an_error(devices):
    with pytest.raises(ResourceError, match="3 of 'gizmo'"):
        devices.probe(request(3), "img")


def test_an_unknown_kind_is_an_error_with_the_installed_ones(devices):
    with pytest.raises(ResourceError, match=r"'gadget'.*installed are: gizmo"):
        devices.probe(ResourceRequest(devices={"gadget": 1}), "img")
