"""A job's own control group proves an out-of-memory kill; limits are made where there are none."""

import pytest

from fiber._agent.cgroups import Group
from fiber._agent.supervisor.cgroup import JobConfiner, OwnGroup
from fiber.model import ResourceRequest

REQUEST = ResourceRequest(memory=100)


@pytest.fixture
def second(tmp_path):
    (tmp_path / "memory.events").write_text("oom 2\noom_kill 2\n")
    return Group(2, tmp_path, tmp_path)


@pytest.fixture
def first(tmp_path):
    (tmp_path / "memory.oom_control").write_text("under_oom 0\noom_kill 0\n")
    (tmp_path / "memory.limit_in_bytes").write_text("104857600\n")
    return Group(1, tmp_path, tmp_path)


def confined(group, *, enforce=False):
    confiner = JobConfiner(enforce=enforce, groups_of=lambda _: [group])
    return confiner.confine("job", REQUEST)


def test_kills_of_the_containers_group_are_proof_from_its_start_on(second):
    group, warnings = confined(second)
    assert warnings == ()
    assert not group.ran_out_of_memory()
    (second.folder / "memory.events").write_text("oom_kill 3\n")
    assert group.ran_out_of_memory()
    assert not group.ran_out_of_memory()


def test_the_first_version_counts_as_well(first):
    group, _ = confined(first)
    (first.folder / "memory.oom_control").write_text("oom_kill 1\n")
    assert group.ran_out_of_memory()


def test_a_group_without_a_limit_is_a_machine_and_proves_nothing(first):
    (first.folder / "memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    assert confined(first) == (None, ())


def test_a_group_that_others_share_proves_nothing(second, tmp_path):
    session = Group(2, tmp_path.parent, tmp_path)
    assert confined(session) == (None, ())


def test_the_platforms_group_is_left_alone(second):
    group = OwnGroup({"memory": second.folder})
    assert group.files == ()
    assert group.remove()
    group.kill()
    assert (second.folder / "memory.events").exists()


def test_groups_are_made_where_the_platform_enforces_no_limits(tmp_path):
    outer = tmp_path / "session"
    outer.mkdir()
    group, warnings = confined(Group(2, tmp_path, outer), enforce=True)
    # a folder is no control group, so it reads that there is no limit
    assert group is None
    assert "100 MB is not enforced" in warnings[0]
