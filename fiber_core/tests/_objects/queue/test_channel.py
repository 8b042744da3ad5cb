"""Messages of a queue: batches, what an owner answers to nonsense, the page of a reader's progress."""

import contextlib
import os
import struct
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fiber._objects import protocol
from fiber._objects.memory.backing import Location
from fiber._objects.protocol import Op
from fiber._objects.queue import messages, progress
from fiber._objects.queue.messages import ItemWithReferences, count_to_none
from fiber._objects.queue.progress import ProgressPage, open_page, progress_of
from fiber._wire import codec
from fiber.exceptions import TransportError, WireError
from objects_world import put, take


@pytest.mark.timeout(600)
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_bytes_of_a_peer_leave_the_owner_working(owner, data):
    mine = owner.queue()
    put(mine, b"1")
    op = data.draw(st.sampled_from([*Op, 0, 77]))
    body = bytes([op]) + data.draw(st.binary(max_size=60))

    # it drops what is sent to it
    peer = Mock(state={})
    with contextlib.suppress(TransportError):
        mine.on_message(peer, SimpleNamespace(body=memoryview(body), id=1))
    mine.on_peer_lost(peer)
    put(mine, b"2")
    assert take(mine) in (b"1", b"2")


def test_a_pages_name_outside_the_runs_folder_is_not_opened(mine, theirs, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(4096))
    for name in (str(secret), "../secret", "..", "", "a/b"):
        head = protocol.ATTACH.pack(Op.ATTACH, 0, 0, 1, bytes(16))
        theirs.cast([head, name.encode()])
    theirs.sync()

    assert secret.exists()
    put(mine, b"1")
    assert take(theirs) == b"1"


# -- batches: what is packed is unpacked


NONE = bytes(codec.pickled(None))
REFERENCES = [("abc", ("ipc:///x", "ipc:///y"), 3, 99)]
some = st.lists(
    st.one_of(st.binary(max_size=50), st.just("with_references"), st.just(b"x" * 100_000))
)


def real(one):
    return ItemWithReferences.of(REFERENCES, b"pickle") if one == "with_references" else one


def plain(item):
    return (
        (item.references(), bytes(item.pickled))
        if isinstance(item, ItemWithReferences)
        else bytes(item)
    )


def joined(batch):
    return memoryview(b"".join(messages.pack(batch)))


@pytest.mark.timeout(600)
@given(some)
def test_a_batch_arrives_as_it_was_packed(made):
    batch = [real(one) for one in made]

    assert [plain(item) for item in messages.unpack(joined(batch))] == [plain(i) for i in batch]
    is_one = len(batch) == 1 and not isinstance(batch[0], ItemWithReferences)
    behind = memoryview(b"PUT" + joined(batch))
    assert messages.sole(behind, 3) == (batch[0] if is_one else None)


def test_small_items_are_copied_and_large_ones_are_not():
    large = bytes(200_000)
    segments = messages.pack([b"small", large, b"small"])
    assert any(segment is large for segment in segments)

    # small ones do not keep the message they came in
    assert [type(item) for item in messages.unpack(joined([b"a", b"b"]))] == [bytes, bytes]


@pytest.mark.parametrize(
    "batch", [[b"abc", b"de"], [ItemWithReferences.of(REFERENCES, b"p"), b"x"]]
)
def test_a_batch_cut_anywhere_is_refused(batch):
    whole = bytes(joined(batch))

    for length in range(len(whole)):
        with pytest.raises(WireError):
            messages.unpack(memoryview(whole[:length]))


def test_an_announced_number_beyond_the_batch_is_refused_before_memory_is_taken():
    with pytest.raises(WireError, match="announces 4294967295 items"):
        messages.unpack(memoryview(struct.pack("<II", 2**32 - 1, 0) + bytes(100)))


@pytest.mark.parametrize("positions", [(5,), (0, 0)])
def test_a_false_or_repeated_position_of_an_item_with_references_is_refused(positions):
    count = len(positions)
    body = struct.pack(f"<II1Q{count}I", 1, count, 0, *positions)

    with pytest.raises(WireError, match="with references"):
        messages.unpack(memoryview(body))


@pytest.mark.parametrize("listed", [b"{", b"[1]", b'[["a", 1, 2]]', b"[" * 100_000, None])
def test_references_that_make_no_sense_are_refused(listed):
    body = b"ab" if listed is None else struct.pack("<I", len(listed)) + listed
    with pytest.raises(WireError):
        ItemWithReferences(body).references()


@pytest.mark.parametrize(
    "back, fresh, count, upto",
    [
        ([], [b"1", b"2", NONE, b"4"], 4, 3),
        ([], [b"1", b"2", NONE], 2, 2),
        ([(7, b"1"), (9, NONE)], [b"3"], 3, 2),
        ([(7, NONE)], [NONE], 2, 1),
        ([], [b"abcd", b"2"], 2, 2),
        ([], [ItemWithReferences(NONE), b"2"], 2, 2),
    ],
    ids=["in between", "behind", "among what came back", "two", "as long", "with_references"],
)
def test_items_are_counted_up_to_a_none(back, fresh, count, upto):
    assert count_to_none(back, fresh, count) == upto


# -- the page in which a reader notes what it has handed out


@pytest.fixture
def page(tmp_path):
    with contextlib.closing(ProgressPage(tmp_path, "reader")) as page:
        yield page


def place_of(page, **changed):
    facts = {"name": page.name, "pid": os.getpid(), "size": progress.PAGE_SIZE, "tag": page.tag}
    return Location(**{**facts, **changed})


@pytest.fixture
def words(page, tmp_path):
    """The page as its owner sees it."""
    return open_page(place_of(page), tmp_path)


def test_the_owner_sees_what_the_reader_notes_and_after_its_end(page, words):
    slot = page.slot()
    read = progress_of(words, slot.index)
    slot.words[slot.offset] = 7
    assert read() == (7, 0, 0)

    slot.note_given_back(8, 10)
    page.close()
    page.close()
    assert read() == (10, 8, 10)


def test_its_descriptor_is_closed_once_by_threads_that_close_it_at_the_same_time(page, monkeypatch):
    closed = []

    def close(descriptor):
        closed.append(descriptor)
        os.close(descriptor)
        if len(closed) == 1:
            # another thread, while the first one is here
            page.close()

    monkeypatch.setattr(progress, "os", SimpleNamespace(close=close))
    page.close()
    assert len(closed) == 1


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
    monkeypatch.setattr("fiber._objects.memory.backing.sys", SimpleNamespace(platform="other"))
    page = ProgressPage(tmp_path, "reader")
    assert (tmp_path / page.name).stat().st_mode & 0o077 == 0

    if opened:
        words = open_page(place_of(page), tmp_path)
        assert words is not None
    else:
        page.close()
    assert list(tmp_path.iterdir()) == []
    page.close()


def test_what_is_no_page_or_not_the_one_that_is_meant_is_none(page, tmp_path):
    (tmp_path / "mshort-1").write_bytes(b"x")
    os.mkfifo(tmp_path / "mfifo-1")

    assert open_page(place_of(page, tag=bytes(progress.TAG_SIZE)), tmp_path) is None
    for name in ("mabsent-1", "mshort-1", "mfifo-1"):
        assert open_page(place_of(page, name=name), tmp_path) is None


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc/passwd", "fd:", "fd:../1", "fd:-1"])
def test_a_name_that_leads_elsewhere_is_none(page, name, tmp_path):
    assert open_page(place_of(page, name=name), tmp_path) is None


def test_slots_are_private_once_all_are_taken_and_come_back(page):
    taken = [page.slot() for _ in range(progress.SLOTS - 1)]
    private = page.slot()
    private.note_given_back(1, 2)
    assert (private.index, private.words[private.offset]) == (-1, 2)

    page.release(private)
    page.release(taken[5])
    assert page.slot().index == taken[5].index
