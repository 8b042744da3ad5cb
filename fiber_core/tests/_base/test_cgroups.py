"""Control groups of a process, read from files of ``/proc``, and CPUs and memory that they leave to it."""

import math
import os
import sys
from pathlib import Path

import pytest

from fiber._base import cgroups
from fiber._base.cgroups import Group, find_groups, own_groups

V1 = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_version_one_has_a_folder_for_each_controller():
    groups = "4:memory:/user/a\n2:cpu,cpuacct:/b\n0::/c\n"

    assert find_groups("memory", groups, V1) == [
        Group(1, Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/memory/user/a")),
        Group(2, Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/unified/c")),
    ]
    assert find_groups("cpu", groups, V1)[0].folder == Path("/sys/fs/cgroup/cpu,cpuacct/b")


def test_version_two_has_one_for_all():
    groups = "0::/user.slice/user-1000.slice/session-2.scope\n"

    (group,) = find_groups("memory", groups, V2)

    assert group.version == 2
    assert [str(folder) for folder in group.upwards()] == [
        "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope",
        "/sys/fs/cgroup/user.slice/user-1000.slice",
        "/sys/fs/cgroup/user.slice",
        "/sys/fs/cgroup",
    ]


def test_a_container_sees_its_own_group_as_the_root():
    mounts = "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n"

    assert find_groups("cpu", "0::/docker/abc/sub\n", mounts)[0].folder == Path(
        "/sys/fs/cgroup/sub"
    )
    assert find_groups("cpu", "0::/elsewhere\n", mounts)[0].folder == Path("/sys/fs/cgroup")


def test_spaces_in_paths_are_read():
    mounts = "30 23 0:26 / /mnt/a\\040b rw - cgroup2 none rw\n"

    assert find_groups("cpu", "0::/\n", mounts)[0].mount == Path("/mnt/a b")


def test_systems_without_any_have_none():
    assert find_groups("cpu", "", "") == []
    assert all(group.folder.is_dir() for group in own_groups("cpu"))


@pytest.fixture
def groups(monkeypatch, tmp_path):
    """Makes this process a member of a made-up group with these files."""

    def make(version, **files):
        (tmp_path / "a").mkdir(exist_ok=True)
        for name, text in files.items():
            (tmp_path / "a" / name.replace("__", ".")).write_text(text)
        monkeypatch.setattr(
            cgroups, "own_groups", lambda controller: [Group(version, tmp_path, tmp_path / "a")]
        )

    return make


def available():
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()


@pytest.mark.parametrize(
    "version, files, quota",
    [
        (2, {"cpu__max": "max 100000\n"}, None),
        (2, {"cpu__max": "50000 100000\n"}, 0.5),
        (2, {"cpu__max": "100000 100000\n"}, 1.0),
        (1, {"cpu__cfs_quota_us": "150000\n", "cpu__cfs_period_us": "100000\n"}, 1.5),
        (1, {"cpu__cfs_quota_us": "-1\n", "cpu__cfs_period_us": "100000\n"}, None),
    ],
)
def test_cpus_are_those_of_the_affinity_or_of_the_quota(groups, version, files, quota):
    groups(version, **files)

    assert cgroups.cpu_quota() == quota
    assert cgroups.cpu_count() == min(available(), math.ceil(quota or available()))


def test_the_tightest_group_counts(groups, tmp_path):
    groups(2, cpu__max="200000 100000\n")
    (tmp_path / "cpu.max").write_text("100000 100000\n")

    assert cgroups.cpu_quota() == 1.0


def test_memory_is_the_machines_or_the_groups(groups):
    groups(2, memory__max="max\n")
    assert cgroups.memory_total() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    groups(2, memory__max=f"{64 << 20}\n")
    assert cgroups.memory_total() == 64
