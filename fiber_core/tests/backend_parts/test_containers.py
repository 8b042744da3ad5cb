"""Whose container does without privileges."""

import pytest

from fiber.backend_parts.containers import is_reduced
from fiber.model import JobSpec


@pytest.mark.parametrize(
    "security, all_do, fibers_own_do",
    [("restricted", True, True), ("reduced", False, True), ("image", False, False)],
)
def test_a_setting_says_whose_container_does_without_privileges(security, all_do, fibers_own_do):
    program = JobSpec(run_id="0123abcd", name="job", argv=("program",))
    worker = JobSpec(run_id="0123abcd", name="job", argv=("python",), entry="worker")

    assert is_reduced(security, program) is all_do
    assert is_reduced(security, worker) is fibers_own_do
