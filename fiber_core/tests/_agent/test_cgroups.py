"""Control groups of a process, read from files of ``/proc``."""

from pathlib import Path

from fiber._agent.cgroups import Group, find_groups, own_groups

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
