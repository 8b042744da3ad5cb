"""Limits by control groups: on real ones where they can be had, and on made-up folders."""

import os
import signal
from pathlib import Path

import pytest

import require
from fiber._agent.supervisor.cgroup import Confinement, Confiner, JobConfiner
from fiber._base.cgroups import Group
from fiber.model import Reason, ReasonKind, ResourceRequest
from supervised import until_gone

MB = 1 << 20


@pytest.fixture
def limits():
    """Skips where this system lets us make no control groups."""
    confinement, warnings = Confiner().confine("test", ResourceRequest(cpu=1, memory=64))
    if confinement is not None:
        assert confinement.remove()
    require.need("cgroups", "; ".join(warnings))


def test_a_job_that_takes_too_much_memory_is_killed_with_proof(limits, supervised):
    status = supervised.run("allocate", resources=ResourceRequest(memory=128))

    assert status.reason == Reason(ReasonKind.OOM)
    assert status.exit_code == -signal.SIGKILL
    assert status.message.startswith("out of memory: its limit is 128 MB, its peak was ")


def test_one_that_is_killed_in_a_limited_group_is_not_said_to_be_out_of_memory(limits, supervised):
    accepted = supervised.ready("wait", processes=2, resources=ResourceRequest(memory=128))
    os.kill(accepted.pids[0], signal.SIGKILL)
    status = supervised.until(accepted, lambda s: s.processes[0].state.is_terminal)

    assert status.processes[0].reason == Reason(ReasonKind.SIGNAL, signal.SIGKILL)
    supervised.client.kill(accepted.job_id)
    assert supervised.end(accepted).processes[1].reason == Reason(ReasonKind.SIGNAL, 9)


def test_groups_are_gone_with_their_jobs_which_may_do_all_within_their_limits(limits, own):
    request = ResourceRequest(memory=256, cpu=1)
    for _ in range(3):
        assert own.run("exit_with", b"\3", resources=request).exit_code == 3
    own.run("with_stranger", resources=request)

    own.client.close()

    roots = Path("/sys/fs/cgroup")
    assert list(roots.rglob(f"fiber-*-{own.process.pid}-*")) == []


def test_members_that_left_their_session_end_with_the_job(limits, supervised):
    accepted = supervised.submit("with_stranger", resources=ResourceRequest(memory=256))

    supervised.end(accepted)
    until_gone(int(supervised.lines(accepted, 1)[0]))


class Kernel:
    """Makes the files that the kernel makes in a new group."""

    def __init__(self, root, version, controllers="memory cpu"):
        self.root = root
        self.version = version
        folder = root / "user" / "app"
        folder.mkdir(parents=True)
        for each in (root, root / "user", folder):
            (each / "cgroup.subtree_control").write_text(controllers if version == 2 else "")
        self.group = Group(version, root, folder)

    def populate(self, folder):
        if self.version == 2:
            files = ("memory.max", "memory.swap.max", "cpu.max", "cgroup.procs")
        else:
            files = ("memory.limit_in_bytes", "cpu.cfs_period_us", "cpu.cfs_quota_us")
        for name in files:
            (folder / name).touch()


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    def make(version, **more):
        kernel = Kernel(tmp_path, version, **more)
        mkdir, rmdir = Path.mkdir, Path.rmdir

        def make_group(folder, *arguments, **options):
            mkdir(folder, *arguments, **options)
            kernel.populate(folder)

        def remove_group(folder):
            for file in folder.iterdir():
                file.unlink()
            rmdir(folder)

        monkeypatch.setattr(Path, "mkdir", make_group)
        monkeypatch.setattr(Path, "rmdir", remove_group)
        return kernel

    return make


def confiner(kernel, attach=lambda file: True):
    return Confiner(lambda controller: [kernel.group], attach)


def test_version_one_makes_groups_below_our_own(kernel):
    made = kernel(1)
    request = ResourceRequest(memory=100, cpu=1.5)

    confinement, warnings = confiner(made).confine("job", request)

    assert warnings == ()
    (folder,) = made.group.folder.glob(f"fiber-*-{os.getpid()}-job")
    assert set(confinement.folders.values()) == {folder}
    assert (folder / "memory.limit_in_bytes").read_text() == str(100 * MB)
    assert (folder / "cpu.cfs_quota_us").read_text() == "150000"
    assert (folder / "cpu.cfs_period_us").read_text() == "100000"


def test_version_two_makes_groups_where_sub_groups_have_the_controllers(kernel):
    made = kernel(2)

    confinement, warnings = confiner(made).confine("job", ResourceRequest(memory=100, cpu=0.001))

    assert warnings == ()
    folder = confinement.folders["memory"]
    assert folder.parent == made.group.folder
    assert (folder / "memory.max").read_text() == str(100 * MB)
    assert (folder / "memory.swap.max").read_text() == "0"
    # the kernel's smallest
    assert (folder / "cpu.max").read_text() == "1000 100000"
    assert confinement.files == (str(folder / "cgroup.procs"),)


def test_it_looks_upwards_for_a_group_that_can_be_joined(kernel):
    made = kernel(2)

    confinement, _ = confiner(made, lambda file: file.parent.parent == made.root / "user").confine(
        "job", ResourceRequest(memory=1)
    )

    assert confinement.folders["memory"].parent == made.root / "user"


def test_a_limit_that_cannot_be_enforced_is_reported_once(kernel):
    made = kernel(2)
    nowhere = confiner(made, lambda file: False)

    first = nowhere.confine("a", ResourceRequest(memory=64, cpu=2))
    second = nowhere.confine("b", ResourceRequest(memory=64, cpu=2))

    assert first == (
        None,
        (
            "the memory limit of 64 MB is not enforced: no control group can be written here",
            "the limit of 2 CPUs is not enforced: no control group can be written here",
        ),
    )
    assert second == (None, ())
    assert not list(made.root.rglob("fiber-*"))


def test_a_job_that_asks_for_nothing_gets_no_group(kernel):
    assert confiner(kernel(2)).confine("a", ResourceRequest()) == (None, ())


def test_groups_that_dead_supervisors_left_are_removed(kernel):
    made = kernel(2)
    (folder,) = set(confiner(made).confine("a", ResourceRequest(memory=1))[0].folders.values())
    own = str(os.getpid())
    dead, other = folder.name.replace(own, "4194305"), folder.name.replace(own, str(os.getppid()))
    left, living = folder.with_name(dead), folder.with_name(other)
    left.mkdir()
    living.mkdir()

    confiner(made).confine("b", ResourceRequest(memory=1))

    assert not left.exists()
    assert living.exists()


@pytest.mark.parametrize("name", ["fiber-00000000-4194305-job", "fiber-4194305-job", "fiber-x-y-z"])
def test_groups_whose_supervisors_are_in_another_pid_namespace_stay(kernel, name):
    made = kernel(2)
    other = made.group.folder / name
    other.mkdir()

    confiner(made).confine("a", ResourceRequest(memory=1))

    assert other.exists()


@pytest.mark.parametrize(
    "name, text",
    [
        ("memory.events", "low 0\noom 3\noom_kill {}\n"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
    ],
    ids=["version two", "version one"],
)
def test_kills_for_memory_are_counted_one_by_one(tmp_path, name, text):
    confinement = Confinement({"memory": tmp_path})
    (tmp_path / name).write_text(text.format(0))
    assert not confinement.ran_out_of_memory()

    (tmp_path / name).write_text(text.format(2))

    assert [confinement.ran_out_of_memory() for _ in range(3)] == [True, True, False]
    # a group for CPU time proves nothing
    assert not Confinement({"cpu": tmp_path}).ran_out_of_memory()


@pytest.fixture(params=[1, 2])
def platform(request, tmp_path):
    """The group that a platform made for a job, whose limit it enforces."""
    kills = "memory.oom_control" if request.param == 1 else "memory.events"
    (tmp_path / kills).write_text("oom 2\noom_kill 2\n")
    (tmp_path / "memory.limit_in_bytes").write_text("104857600\n")
    return Group(request.param, tmp_path, tmp_path)


def confined(group, *, enforce=False):
    confiner = JobConfiner(enforce=enforce, groups_of=lambda _: [group])
    return confiner.confine("job", ResourceRequest(memory=100))


def test_kills_of_the_containers_group_are_proof_from_its_start_on_and_it_is_left_alone(platform):
    group, warnings = confined(platform)
    assert warnings == ()
    assert not group.ran_out_of_memory()
    for name in ("memory.events", "memory.oom_control"):
        (platform.folder / name).write_text("oom_kill 3\n")
    assert group.ran_out_of_memory()
    assert not group.ran_out_of_memory()
    assert group.files == ()
    assert group.remove()
    group.kill()
    assert platform.folder.exists()


@pytest.mark.parametrize("platform", [1], indirect=True)
def test_a_group_without_a_limit_is_a_machine_and_proves_nothing(platform):
    (platform.folder / "memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    assert confined(platform) == (None, ())


def test_a_group_that_others_share_proves_nothing(platform, tmp_path):
    session = Group(platform.version, tmp_path.parent, tmp_path)
    assert confined(session) == (None, ())


def test_groups_are_made_where_the_platform_enforces_no_limits(tmp_path):
    outer = tmp_path / "session"
    outer.mkdir()
    group, warnings = confined(Group(2, tmp_path, outer), enforce=True)
    # a folder is no control group, so it reads that there is no limit
    assert group is None
    assert "100 MB is not enforced" in warnings[0]
