"""CPUs are counted by affinity and quota."""

import math
import os
import sys

import pytest

from fiber._agent import cgroups
from fiber._agent.cgroups import Group


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
