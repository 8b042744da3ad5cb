"""A run of mpirun begins only where every rank is in its place, and never outlives its failure."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._ring.mpi.hosts import MpiHost
from fiber._ring.mpi.timing import MpiTiming
from fiber._ring.mpi.vigil import Begin, Send, Verdict, Vigil, ended_how

TIMING = MpiTiming()
TERM, KILL = [Send(signal.SIGTERM)], [Send(signal.SIGKILL)]


@pytest.fixture
def vigil():
    return watching(3, MpiHost("a", 2), MpiHost("b", 1))


def watching(count, *hosts, strict=True):
    return Vigil(count, hosts, strict=strict, start_timeout=60.0, now=0.0, timing=TIMING)


def begin(vigil):
    for rank, host in enumerate("aab"):
        instructions = vigil.rank_up(rank, host, 1.0)
    return instructions


def test_ranks_begin_together_once_all_have_come(vigil):
    assert vigil.rank_up(2, "b", 1.0) == vigil.rank_up(0, "a", 1.0) == []

    assert sorted(vigil.rank_up(1, "a", 1.0), key=str) == [Begin("a", 2), Begin("b", 1)]
    assert vigil.deadline is None


def test_a_rank_in_the_wrong_place_ends_the_run_before_any_begins(vigil):
    for rank, host in enumerate("aba"):
        instructions = vigil.rank_up(rank, host, 1.0)

    assert instructions == TERM
    verdict = vigil.ended(143)
    assert verdict.code == 1
    assert "rank 1 began on b and belongs on a" in verdict.why


def test_where_the_user_maps_ranks_any_place_with_room_will_do():
    vigil = watching(2, MpiHost("a"), MpiHost("b"), strict=False)

    vigil.rank_up(0, "b", 1.0)

    assert len(vigil.rank_up(1, "a", 1.0)) == 2


@pytest.mark.parametrize("code", [0, 125, 213])
def test_an_mpirun_that_used_other_hosts_has_failed_unless_it_has_printed_the_reason(vigil, code):
    verdict = vigil.ended(code)

    assert verdict.code == (code or 1)
    assert ("ranks 0, 1, 2 never began on a member" in verdict.why) == (code != 213)


def test_ranks_that_never_come_are_not_waited_for(vigil):
    vigil.rank_up(0, "a", 1.0)
    assert vigil.tick(59.0) == []

    assert vigil.tick(60.0) == TERM
    assert "within 60 s: ranks 1, 2 never began" in vigil.ended(0).why


def test_a_normal_end_says_nothing_and_an_mpirun_that_stays_after_its_ranks_is_ended(vigil):
    begin(vigil)
    for rank in range(3):
        vigil.rank_ended(rank, 0, 5.0)
    assert vigil.ended(0) == Verdict(0)

    over = 5.0 + TIMING.after_all
    assert vigil.tick(over - 0.1) == []
    assert vigil.tick(over) == TERM
    # nothing has failed
    assert vigil.ended(143) == Verdict(0)


@pytest.mark.parametrize(
    "code, how", [(3, "ended with 3"), (137, "was killed by SIGKILL"), (250, "ended with 250")]
)
def test_the_first_rank_that_fails_is_named(vigil, code, how):
    begin(vigil)
    vigil.rank_ended(2, code, 5.0)
    vigil.rank_ended(0, 143, 5.0)

    assert vigil.ended(code) == Verdict(code, f"rank 2 on b {how}")
    assert ended_how(code) == how


@pytest.mark.parametrize(
    "rank, own, code",
    [(3, 0, 3), (3, 255, 3), (3, 14, 3), (143, 7, 7), (137, 137, 137), (137, 0, 137)],
)
def test_its_code_is_the_ranks_unless_that_was_killed_for_anothers_failure(vigil, rank, own, code):
    begin(vigil)
    vigil.rank_ended(2, rank, 5.0)

    assert vigil.ended(own).code == code


def test_an_mpirun_that_waits_for_a_dead_rank_is_asked_to_end_then_killed_and_then_given_up(vigil):
    begin(vigil)
    vigil.rank_ended(1, 3, 5.0)
    due = 5.0
    for wait, instructions in (
        (TIMING.after_failure, TERM),
        (TIMING.after_signal, KILL),
        (TIMING.after_signal, []),
    ):
        assert not vigil.is_given_up
        due += wait
        assert vigil.tick(due - 0.1) == []
        assert vigil.tick(due) == instructions

    assert vigil.is_given_up
    assert vigil.ended(-9) == Verdict(3, "rank 1 on a ended with 3")


def test_a_lost_member_ends_the_run(vigil):
    begin(vigil)

    assert vigil.lost("b (on h)", "killed by SIGKILL", 5.0) == TERM
    assert vigil.lost("a (on h)", "too", 5.0) == []
    assert vigil.ended(205) == Verdict(1, "b (on h) was lost: killed by SIGKILL")


def test_signals_end_it_and_a_second_one_kills(vigil):
    begin(vigil)

    assert vigil.interrupted(signal.SIGINT, 5.0) == TERM
    assert vigil.interrupted(signal.SIGINT, 5.1) == KILL
    assert vigil.ended(-9) == Verdict(130, is_asked=True)


def test_a_killed_mpirun_is_reported(vigil):
    begin(vigil)

    assert vigil.ended(-9) == Verdict(137, "mpirun was killed by SIGKILL")


EVENTS = st.one_of(
    st.tuples(st.just("up"), st.integers(0, 3), st.sampled_from("abc")),
    st.tuples(st.just("ended"), st.integers(0, 3), st.sampled_from([0, 1, 137])),
    st.tuples(st.just("lost"), st.sampled_from("ab"), st.just("gone")),
    st.tuples(st.just("signal"), st.just(2), st.just(None)),
    st.tuples(st.just("tick"), st.just(0), st.just(None)),
)


def happen(vigil, kind, first, second, now):
    if kind == "up":
        return vigil.rank_up(first, second, now)
    if kind == "ended":
        return vigil.rank_ended(first, second, now)
    if kind == "lost":
        return vigil.lost(first, second, now)
    return vigil.interrupted(first, now) if kind == "signal" else vigil.tick(now)


@given(events=st.lists(EVENTS, max_size=30), code=st.sampled_from([0, 1, -9]))
def test_whatever_happens_ranks_begin_once_in_their_places_and_an_end_is_in_sight(events, code):
    vigil = watching(2, MpiHost("a"), MpiHost("b"))
    begun, signals, now = [], [], 0.0
    for kind, first, second in events:
        now += 1.0
        if kind == "tick" and vigil.deadline is not None:
            now = max(now, vigil.deadline)
        instructions = happen(vigil, kind, first, second, now)
        begun += [one for one in instructions if isinstance(one, Begin)]
        signals += [one.number for one in instructions if isinstance(one, Send)]
    assert begun in ([], [Begin("a", 1), Begin("b", 1)], [Begin("b", 1), Begin("a", 1)])
    assert signals[:1] in ([], [signal.SIGTERM])
    assert set(signals[1:]) <= {signal.SIGKILL}
    if signals:
        # what was asked to end is killed, and then given up
        for _ in range(3):
            if vigil.deadline is not None:
                vigil.tick(vigil.deadline)
        assert vigil.is_given_up
    if not begun and code == 0 and not signals:
        assert vigil.ended(code).code != 0
