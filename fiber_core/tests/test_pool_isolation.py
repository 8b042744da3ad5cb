"""Tasks may change objects that come in the arguments of several of them."""

import pytest

import fiber

pytestmark = pytest.mark.usefixtures("shared_runtime")


def append(values):
    values.append(1)
    return len(values)


@pytest.fixture
def pool():
    with fiber.Pool(2) as made:
        # short tasks travel together
        made.map(abs, range(1000), chunksize=1)
        yield made


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda pool, items: pool.map(append, items, chunksize=1), id="map"),
        pytest.param(lambda pool, items: list(pool.imap(append, items)), id="imap"),
    ],
)
def test_what_a_task_does_to_an_object_no_other_task_sees(pool, call):
    shared = []
    assert set(call(pool, [shared] * 1000)) == {1}
    assert shared == []


def test_what_an_object_is_within_a_chunk_is_as_in_the_standard_library(pool):
    assert pool.map(append, [[]] * 6, chunksize=3) == [1, 2, 3] * 2
