"""Programs that take part in how objects are pickled."""

from __future__ import annotations

import copyreg
import io
import pickle

import pytest

import fiber
from fiber import reduction

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]


class Resource:
    """Has no pickle of its own."""

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        raise TypeError("cannot be pickled")


def reduce_resource(resource):
    return Resource, (resource.name,)


def name_of(resource):
    return resource.name


@pytest.fixture
def _registered():
    reduction.register(Resource, reduce_resource)
    yield
    del copyreg.dispatch_table[Resource]


@pytest.mark.usefixtures("_registered")
def test_a_registered_type_goes_through_pools_and_queues():
    with fiber.Pool(1) as pool:
        assert pool.apply(name_of, (Resource("to a worker"),)) == "to a worker"
    with fiber.SimpleQueue() as queue:
        queue.put(Resource("through a queue"))
        assert queue.get().name == "through a queue"


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("protocol", [None, 4])
def test_an_object_is_pickled_as_it_travels(protocol):
    made = reduction.ForkingPickler.dumps(Resource("one"), protocol)
    assert reduction.ForkingPickler.loads(made).name == "one"

    stream = io.BytesIO()
    reduction.dump(Resource("two"), stream, protocol)
    assert pickle.loads(stream.getvalue()).name == "two"


def test_a_closure_is_pickled_as_it_travels():
    assert pickle.loads(reduction.ForkingPickler.dumps(lambda: 5))() == 5


def test_a_reducer_has_the_three_names():
    reducer = reduction.AbstractReducer
    assert reducer.ForkingPickler is reduction.ForkingPickler
    assert reducer.dump(1, io.BytesIO()) is None
