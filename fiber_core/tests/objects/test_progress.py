"""The page in which a reader notes what it has handed out."""

import pytest

from fiber.objects import progress
from fiber.objects.progress import Page, Slot, open_page, reader_of


@pytest.fixture
def page(tmp_path):
    page = Page(tmp_path, "reader")
    yield page
    page.remove()


def test_the_owner_sees_what_the_reader_notes(page, tmp_path):
    slot = page.slot()
    read = reader_of(open_page(tmp_path / page.name, page.mark), slot.index)
    slot.words[slot.at] = 7
    assert read() == (7, 0, 0)

    slot.gave(8, 10)
    assert read() == (10, 8, 10)


def test_slots_do_not_touch_each_other_or_the_head(page, tmp_path):
    slots = [page.slot() for _ in range(3)]
    words = open_page(tmp_path / page.name, page.mark)
    for number, slot in enumerate(slots, 1):
        slot.gave(number, 2 * number)

    assert [reader_of(words, slot.index)() for slot in slots] == [(2, 1, 2), (4, 2, 4), (6, 3, 6)]
    assert all(slot.index > 0 for slot in slots)


def test_the_file_has_no_name_any_more_once_the_owner_has_it(page, tmp_path):
    assert open_page(tmp_path / page.name, page.mark) is not None
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_the_mark_is_left_alone(page, tmp_path):
    assert open_page(tmp_path / page.name, bytes(progress.MARK)) is None
    assert (tmp_path / page.name).exists()


def test_what_is_no_page_is_none(tmp_path):
    (tmp_path / "short").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "short")

    assert open_page(tmp_path / "absent", b"") is None
    assert open_page(tmp_path / "short", b"") is None
    assert open_page(tmp_path / "link", b"") is None


def test_only_its_user_may_read_it(page, tmp_path):
    assert (tmp_path / page.name).stat().st_mode & 0o077 == 0


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
