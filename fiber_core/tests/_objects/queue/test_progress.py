"""The page in which a reader notes what it has handed out."""

import os
from types import SimpleNamespace

import pytest

from fiber._objects.queue import progress
from fiber._objects.queue.progress import (
    ProgressPage,
    ProgressSlot,
    open_page,
    page_path,
    progress_of,
)


@pytest.fixture
def page(tmp_path):
    page = ProgressPage(tmp_path, "reader")
    yield page
    page.close()


@pytest.fixture
def words(page, tmp_path):
    """The page as its owner sees it."""
    return open_page(page_path(page.name, os.getpid(), tmp_path), page.tag)


def test_the_owner_sees_what_the_reader_notes_and_after_its_end(page, words):
    slot = page.slot()
    read = progress_of(words, slot.index)
    slot.words[slot.offset] = 7
    assert read() == (7, 0, 0)

    slot.note_given_back(8, 10)
    page.close()
    page.close()
    assert read() == (10, 8, 10)


def test_slots_do_not_touch_each_other_or_the_head(page, words):
    slots = [page.slot() for _ in range(3)]
    for number, slot in enumerate(slots, 1):
        slot.note_given_back(number, 2 * number)

    assert [progress_of(words, slot.index)() for slot in slots] == [(2, 1, 2), (4, 2, 4), (6, 3, 6)]
    assert all(slot.index > 0 for slot in slots)


@pytest.mark.parametrize("opened", [True, False])
def test_where_memory_needs_a_name_the_owner_removes_it_or_the_reader(
    tmp_path, monkeypatch, opened
):
    monkeypatch.setattr("fiber._objects.queue.progress.sys", SimpleNamespace(platform="other"))
    page = ProgressPage(tmp_path, "reader")
    assert (tmp_path / page.name).stat().st_mode & 0o077 == 0

    if opened:
        words = open_page(page_path(page.name, os.getpid(), tmp_path), page.tag)
        assert words is not None
    else:
        page.close()
    assert list(tmp_path.iterdir()) == []
    page.close()


def test_what_is_no_page_or_not_the_one_that_is_meant_is_none(page, tmp_path):
    (tmp_path / "short").write_bytes(b"x")
    os.mkfifo(tmp_path / "fifo")
    mine = page_path(page.name, os.getpid(), tmp_path)

    for where in (mine, *(tmp_path / name for name in ("absent", "short", "fifo", ""))):
        assert open_page(where, bytes(progress.TAG_SIZE)) is None


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc/passwd", "fd:", "fd:../1", "fd:-1"])
def test_a_name_that_leads_elsewhere_is_none(name, tmp_path):
    assert page_path(name, 1, tmp_path) is None


def test_slots_are_private_once_all_are_taken_and_come_back(page):
    taken = [page.slot() for _ in range(progress.SLOTS - 1)]
    assert page.slot().index == -1

    page.release(taken[5])
    assert page.slot().index == taken[5].index


def test_a_private_slot_works_and_is_never_given_back(page):
    slot = ProgressSlot.private()
    slot.note_given_back(1, 2)
    page.release(slot)

    assert slot.words[slot.offset] == 2
    assert page.slot().index > 0
