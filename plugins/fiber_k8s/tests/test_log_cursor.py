"""How far a log was read, whatever the node's clock calls the time."""

import pytest

from fiber_k8s.logplace import LogPlace


def told(place, *lines, **how):
    return list(place.new(iter(lines), **how))


@pytest.mark.parametrize(
    "stamp",
    [
        "2026-11-21T12:00:05.123456789Z",
        "2026-11-21T13:00:05.123456789+01:00",
        "2026-11-21T05:30:05.123456789-06:30",
        "2026-11-21T12:00:05Z",
    ],
)
def test_what_comes_next_is_asked_for_in_utc_whatever_zone_the_node_is_in(stamp):
    place = LogPlace()
    assert told(place, f"{stamp} a") == ["a"]
    assert place.since() == {"sinceTime": "2026-11-21T12:00:04Z"}


def test_nothing_is_asked_for_before_something_was_told():
    assert LogPlace().since() == {}


def test_what_is_told_again_is_no_news():
    place = LogPlace()
    lines = [f"2026-11-21T13:00:05.{part:09d}+01:00 {part}" for part in (1, 2, 2, 3)]
    assert told(place, *lines) == ["1", "2", "2", "3"]
    later = "2026-11-21T13:00:06.000000001+01:00 4"
    assert told(place, *lines, later) == ["4"]
    assert told(place, *lines, later) == []


def test_equal_lines_of_one_moment_are_as_many_as_they_are():
    place = LogPlace()
    line = "2026-11-21T12:00:05.1Z tick"
    assert told(place, line) == ["tick"]
    assert told(place, line, line, line) == ["tick", "tick"]


def test_two_streams_that_were_written_out_of_order_lose_and_double_nothing():
    place = LogPlace()
    out, err = "2026-11-21T12:00:05.000000009Z out", "2026-11-21T12:00:04.999999999Z err"
    assert told(place, out, err) == ["out", "err"]
    assert told(place, out, err) == []
    late = "2026-11-21T12:00:04.999999998Z late"
    assert told(place, out, err, late) == ["late"]


def test_zeros_at_the_end_of_a_time_make_it_no_later():
    place = LogPlace()
    lines = ["2026-11-21T12:00:05.5Z a", "2026-11-21T12:00:05.49Z b", "2026-11-21T12:00:05.51Z c"]
    assert told(place, *lines) == ["a", "b", "c"]
    assert told(place, *lines) == []


class TestTail:
    def test_lines_before_it_are_not_wanted_afterwards_either(self):
        place = LogPlace()
        early, last = "2026-11-21T12:00:05.1Z early", "2026-11-21T12:00:05.2Z last"
        assert told(place, last, is_tail=True) == ["last"]
        assert told(place, early, last, "2026-11-21T12:00:05.3Z new") == ["new"]

    def test_it_is_told_in_its_order(self):
        place = LogPlace()
        lines = ["2026-11-21T12:00:05.2Z out", "2026-11-21T12:00:05.1Z err"]
        assert told(place, *lines, is_tail=True) == ["out", "err"]
        assert told(place, *lines) == []

    def test_of_an_empty_log_all_comes_after(self):
        place = LogPlace()
        assert told(place, is_tail=True) == []
        assert told(place, "2026-11-21T12:00:05Z a") == ["a"]


def test_words_of_the_node_have_no_time():
    words = "unable to retrieve container logs for containerd://0123"
    place = LogPlace()
    assert told(place, words) == [words]
    assert place.since() == {}


def test_what_is_remembered_does_not_grow_with_the_log():
    place = LogPlace()
    for second in range(1000):
        told(place, f"2026-11-21T12:{second // 60:02d}:{second % 60:02d}.5Z x")
    assert sum(len(stamps) for stamps in place._told.values()) <= 2
