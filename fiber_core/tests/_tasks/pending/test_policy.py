from __future__ import annotations

import pytest

from fiber._tasks.pending import BatchPolicy, RetryPolicy, RevokePolicy


def test_the_defaults_are_those_that_the_documentation_names():
    assert RetryPolicy().max_attempts == 3
    assert BatchPolicy() == BatchPolicy(
        target=0.008,
        cost=0.00005,
        max_units=4096,
        max_bytes=2**20,
        second_below=0.150,
        spread_from=0.010,
    )
    assert RevokePolicy() == RevokePolicy(
        floor=0.05, factor=5.0, per_worker=0.0001, answer_timeout=0.1
    )


@pytest.mark.parametrize(
    "policy, field",
    [(RetryPolicy, "max_attempts"), (BatchPolicy, "max_units"), (RevokePolicy, "answer_timeout")],
)
def test_a_number_that_makes_no_sense_is_refused_by_name(policy, field):
    with pytest.raises(ValueError, match=field):
        policy(**{field: 0})
