"""What a backend does not declare is refused before it is asked."""

import pytest

from fiber._base import values
from fiber._plugins.backend_choice import refuse_undeclared
from fiber._runtime import runtime
from fiber.exceptions import CapabilityError
from fiber.model import Capabilities, JobSpec, ResourceRequest, Volume

PLAIN = JobSpec(run_id="0badcafe", name="a", argv=("true",))
NEEDS = {
    "images": ({"image": "python:3"}, "image 'python:3'"),
    "volumes": ({"volumes": (Volume(source="nfs", path="/x"),)}, "volume 'nfs'"),
    "devices": (
        {"resources": ResourceRequest(devices={"gpu": 1, "fpga": 2})},
        r"a job with devices \(fpga, gpu\)",
    ),
    "fork": ({"processes": 2}, "a job of 2 processes"),
    "detached": ({"detached": True}, "'a', a job that goes on by itself,"),
}


@pytest.mark.parametrize("capability", NEEDS)
def test_a_job_is_refused_for_what_is_not_declared_and_for_that_alone(capability):
    changes, words = NEEDS[capability]
    spec = values.evolve(PLAIN, **changes)
    with pytest.raises(CapabilityError, match=f"^{words} is not supported by here") as caught:
        refuse_undeclared("here", Capabilities(), spec)
    assert caught.value.capability == capability
    refuse_undeclared("here", Capabilities(**{capability: True}), spec)


def test_cpus_and_memory_are_wishes_where_they_are_no_limits():
    spec = values.evolve(PLAIN, resources=ResourceRequest(cpu=2, memory=100))
    refuse_undeclared("here", Capabilities(), spec)


def test_a_program_is_told_before_its_platform_is_asked(monkeypatch):
    monkeypatch.setattr(runtime, "_current", None)
    monkeypatch.setenv("FIBER_BACKEND", "local")
    current = runtime.current()
    try:
        with pytest.raises(CapabilityError, match="image 'x' is not supported by local"):
            current.submit(values.evolve(PLAIN, image="x"))
        assert current._backend is None
    finally:
        current.close()
