"""A rank reports its start, waits for its release, and reports its end."""

import os
import queue
import subprocess
import tempfile
from pathlib import Path

import pytest

from fiber._ring.mpi.messages import RankEnded, RankUp
from fiber._ring.mpi.ranks import FOLDER, STRAY, RankRegistry, wrapped

PATIENCE = 30.0


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="fm-") as name:
        yield Path(name)


@pytest.fixture
def reports():
    return queue.SimpleQueue()


@pytest.fixture
def registry(folder, reports):
    registry = RankRegistry(folder, reports.put)
    yield registry
    registry.close()


def start(*argv, variable="OMPI_COMM_WORLD_RANK", rank=0, folder=""):
    environ = {"PATH": os.environ["PATH"], variable: str(rank), FOLDER: str(folder)}
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(wrapped(argv), env=environ, **streams)


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"])
def test_a_rank_waits_until_it_may_begin(registry, reports, folder, variable):
    rank = start(
        "sh", "-c", 'cat; echo "$1"; exit 3', "x", "a  b", variable=variable, rank=5, folder=folder
    )
    assert reports.get(timeout=PATIENCE) == RankUp(5, rank.pid)
    assert rank.poll() is None

    registry.release(1)

    assert rank.communicate(b"in\n", timeout=PATIENCE)[0] == b"in\na  b\n"
    assert rank.returncode == 3
    assert reports.get(timeout=PATIENCE) == RankEnded(5, 3)


def test_many_begin_at_once(registry, reports, folder):
    ranks = [start("sh", "-c", f"exit {n}", rank=n, folder=folder) for n in range(8)]
    assert {reports.get(timeout=PATIENCE).rank for _ in ranks} == set(range(8))

    registry.release(len(ranks))

    assert [rank.wait(PATIENCE) for rank in ranks] == list(range(8))
    for rank in ranks:
        rank.communicate()


def test_a_program_that_is_killed_or_missing_is_reported(registry, reports, folder):
    registry.release(2)
    killed = start("sh", "-c", "kill -9 $$", folder=folder)
    killed.communicate(timeout=PATIENCE)
    missing = start("/no/such/program", folder=folder)
    missing.communicate(timeout=PATIENCE)

    found = [reports.get(timeout=PATIENCE) for _ in range(4)]

    assert [one.code for one in found if isinstance(one, RankEnded)] == [137, 127]
    assert (killed.returncode, missing.returncode) == (137, 127)


def test_a_rank_on_no_member_begins_nothing(folder):
    stray = start("touch", f"{folder}/began", rank=2)

    assert b"rank 2 was started on" in stray.communicate(timeout=PATIENCE)[1]
    assert stray.returncode == STRAY
    assert not (folder / "began").exists()


def test_invalid_reports_are_ignored(registry, reports, folder):
    (folder / "up").write_text("nonsense\nup x y\n\nup 1\nup 7 8\n")

    assert reports.get(timeout=PATIENCE) == RankUp(7, 8)
