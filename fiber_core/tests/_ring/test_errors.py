"""The error of a ring: its text, its cause, and pickling."""

import pickle

from fiber._ring.model import Failure, RingError

FAILURE = Failure(
    reason="EXIT(3)",
    message="exited with code 3",
    rank=2,
    host="beta",
    log_tail=("one", "two"),
    traceback="Traceback …",
)


def test_the_text_has_rank_host_reason_and_last_output():
    text = str(RingError(f"r failed: {FAILURE}", failure=FAILURE))

    assert text == (
        "r failed: rank 2 on beta: EXIT(3): exited with code 3\n    one\n    two\n\nTraceback …"
    )


def test_it_can_be_sent():
    error = pickle.loads(pickle.dumps(RingError("r failed", failure=FAILURE)))

    assert (str(error), error.failure) == (str(RingError("r failed", failure=FAILURE)), FAILURE)


def test_a_failure_without_a_rank_says_what_it_knows():
    assert str(Failure(reason="StartTimeout", message="late")) == "StartTimeout: late"
    assert str(Failure(reason="OOM", host="a")) == "a: OOM"
