import json
import sys

import attrs
import pytest

from fiber._agent.resources import check_devices, probe, probe_argv
from fiber.exceptions import ResourceError
from fiber.model import Device
from fiber.testing import FakeProvider


class Scripted(FakeProvider):
    """Devices of kind "box", found by a Python script that prints their ids as JSON."""

    def __init__(self, script, argv=None):
        super().__init__(kind="box")
        self.argv = argv or ("{python}", "-c", script)

    def probe(self):
        return self.argv

    def parse(self, output):
        return [
            Device(kind="box", id=name, index=index)
            for index, name in enumerate(json.loads(output))
        ]


def test_devices_are_what_the_probe_printed_on_stdout():
    script = "import sys; print('a warning', file=sys.stderr); print('[\"a\", \"b\"]')"

    assert [device.id for device in probe(Scripted(script))] == ["a", "b"]


def test_the_probe_runs_with_this_python_unless_another_is_named():
    provider = Scripted("pass")

    assert probe_argv(provider)[0] == sys.executable
    assert probe_argv(provider, python="/opt/python")[0] == "/opt/python"


@pytest.mark.parametrize(
    "script, argv, words, cause",
    [
        (
            "import sys; sys.exit('driver is on holiday')",
            None,
            r"'box' devices.* -c .* code 1: driver is on holiday",
            None,
        ),
        ("raise SystemExit(3)", None, "failed with exit code 3: it said nothing", None),
        # it cannot wait for the terminal
        ("input()", None, "EOFError", None),
        ("print('hello')", None, "answer that cannot be read", ValueError),
        ("", ("/no/such/probe",), "/no/such/probe.*could not be started", FileNotFoundError),
    ],
)
def test_a_probe_that_fails_is_quoted_with_its_command(script, argv, words, cause):
    with pytest.raises(ResourceError, match=words) as caught:
        probe(Scripted(script, argv))
    assert isinstance(caught.value.__cause__, cause or type(None))


def test_a_probe_that_hangs_is_killed_with_its_children():
    script = (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"
    )

    with pytest.raises(ResourceError, match=r"gave no answer within 0.5 s"):
        probe(Scripted(script), timeout=0.5)


def box(index, name):
    return Device(kind="box", id=name, index=index)


def test_devices_are_put_in_the_order_of_their_index():
    found = check_devices(Scripted(""), [box(1, "b"), box(0, "a")])

    assert [device.id for device in found] == ["a", "b"]


@pytest.mark.parametrize(
    "found, words",
    [
        (
            [attrs.evolve(box(0, "a"), kind="crate")],
            "'box' devices answered with a device of kind 'crate'",
        ),
        ([box(0, "a"), box(1, "a")], "names 'a' twice"),
    ],
    ids=["of another kind", "named twice"],
)
def test_devices_that_make_no_sense_are_refused(found, words):
    with pytest.raises(ResourceError, match=words):
        check_devices(Scripted(""), found)
