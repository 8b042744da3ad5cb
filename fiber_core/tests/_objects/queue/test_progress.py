"""The page in which a reader notes what it has handed out."""

import os
from types import SimpleNamespace

import pytest

from fiber._objects.queue import progress
from fiber._objects.queue.progress import Page, Slot, open_page, place, reader_of


@pytest.fixture
def page(tmp_path):
    page = Page(tmp_path, "reader")
    yield page
    page.close()


@pytest.fixture
def words(page, tmp_path):
    """The page as its owner sees it."""
    return open_page(place(page.name, os.getpid(), tmp_path), page.mark)


def test_the_owner_sees_what_the_reader_notes(page, words):
    slot = page.slot()
    read = reader_of(words, slot.index)
    slot.words[slot.at] = 7
    assert read() == (7, 0, 0)

    slot.gave(8, 10)
    assert read() == (10, 8, 10)


def test_slots_do_not_touch_each_other_or_the_head(page, words):
    slots = [page.slot() for _ in range(3)]
    for number, slot in enumerate(slots, 1):
        slot.gave(number, 2 * number)

    assert [reader_of(words, slot.index)() for slot in slots] == [(2, 1, 2), (4, 2, 4), (6, 3, 6)]
    assert all(slot.index > 0 for slot in slots)


def test_the_owner_sees_it_after_the_readers_end(page, words):
    slot = page.slot()
    slot.words[slot.at] = 7
    page.close()
    page.close()

    assert reader_of(words, slot.index)() == (7, 0, 0)


def test_where_memory_needs_a_name_the_owner_removes_it(tmp_path, monkeypatch):
    monkeypatch.setattr("fiber._objects.queue.progress.sys", SimpleNamespace(platform="other"))
    page = Page(tmp_path, "reader")
    assert (tmp_path / page.name).stat().st_mode & 0o077 == 0

    words = open_page(place(page.name, os.getpid(), tmp_path), page.mark)
    assert words is not None
    assert list(tmp_path.iterdir()) == []
    page.close()


def test_the_reader_removes_it_where_the_owner_has_not(tmp_path, monkeypatch):
    monkeypatch.setattr("fiber._objects.queue.progress.sys", SimpleNamespace(platform="other"))
    Page(tmp_path, "reader").close()

    assert list(tmp_path.iterdir()) == []


def test_a_page_without_the_mark_is_left_alone(page, tmp_path):
    where = place(page.name, os.getpid(), tmp_path)

    assert open_page(where, bytes(progress.MARK)) is None


def test_what_is_no_page_is_none(tmp_path):
    (tmp_path / "short").write_bytes(b"x")
    os.mkfifo(tmp_path / "fifo")

    assert open_page(tmp_path / "absent", b"") is None
    assert open_page(tmp_path / "short", b"") is None
    assert open_page(tmp_path / "fifo", b"") is None
    assert open_page(tmp_path, b"") is None


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc/passwd", "fd:", "fd:../1", "fd:-1"])
def test_a_name_that_leads_elsewhere_is_none(name, tmp_path):
    assert place(name, 1, tmp_path) is None


def test_slots_are_private_once_all_are_taken_and_come_back(page):
    taken = [page.slot() for _ in range(progress.SLOTS - 1)]
    assert page.slot().index == -1

    page.release(taken[5])
    assert page.slot().index == taken[5].index


def test_a_private_slot_works_and_is_never_given_back(page):
    slot = Slot.private()
    slot.gave(1, 2)
    page.release(slot)

    assert slot.words[slot.at] == 2
    assert page.slot().index > 0
