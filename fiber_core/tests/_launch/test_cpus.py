"""CPUs are counted by affinity and quota."""

import os
import sys

import pytest

from fiber._agent import cgroups
from fiber._agent.cgroups import Group


@pytest.fixture
def groups(monkeypatch, tmp_path):
    """Makes this process a member of a made-up group with these files."""

    def make(version, **files):
        (tmp_path / "a").mkdir()
        for name, text in files.items():
            (tmp_path / "a" / name.replace("__", ".")).write_text(text)
        monkeypatch.setattr(
            cgroups, "own_groups", lambda controller: [Group(version, tmp_path, tmp_path / "a")]
        )

    return make


def available():
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()


def test_without_a_quota_affinity_counts(groups):
    groups(2, cpu__max="max 100000\n")

    assert cgroups.cpu_quota() is None
    assert cgroups.cpu_count() == available()


@pytest.mark.parametrize("quota,count", [(50_000, 1), (100_000, 1)])
def test_a_quota_of_version_two_counts(groups, quota, count):
    groups(2, cpu__max=f"{quota} 100000\n")

    assert cgroups.cpu_quota() == quota / 100_000
    assert cgroups.cpu_count() == count


def test_a_quota_of_version_one_counts(groups):
    groups(1, cpu__cfs_quota_us="150000\n", cpu__cfs_period_us="100000\n")

    assert cgroups.cpu_quota() == 1.5
    assert cgroups.cpu_count() == min(2, available())


def test_no_quota_of_version_one_is_minus_one(groups):
    groups(1, cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")

    assert cgroups.cpu_quota() is None


def test_the_tightest_group_counts(groups, tmp_path):
    groups(2, cpu__max="200000 100000\n")
    (tmp_path / "cpu.max").write_text("100000 100000\n")

    assert cgroups.cpu_quota() == 1.0


def test_memory_is_the_machines_or_the_groups(groups):
    groups(2, memory__max=f"{64 << 20}\n")
    assert cgroups.memory_total() == 64


def test_no_limit_of_memory_is_the_machines(groups):
    groups(2, memory__max="max\n")

    assert cgroups.memory_total() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
