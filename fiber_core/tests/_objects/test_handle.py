"""Handles in pickles for processes that are not of the run."""

import multiprocessing.context
import pickle
import uuid

import pytest

import fiber
from fiber.sharing import shared


@pytest.fixture
def spawning():
    """The standard library pickles a process that it is about to start."""
    multiprocessing.context.set_spawning_popen(object())
    yield
    multiprocessing.context.set_spawning_popen(None)


@pytest.mark.parametrize(
    "make",
    [
        fiber.Queue,
        fiber.Lock,
        lambda: fiber.Pipe()[0],
        lambda: fiber.Value("i"),
        lambda: shared(uuid.uuid4()),
    ],
    ids=["queue", "lock", "pipe", "value", "shared"],
)
def test_an_object_is_not_given_to_a_process_of_multiprocessing(spawning, make):
    with pytest.raises(RuntimeError, match="start that process with fiber too"):
        pickle.dumps(make())
