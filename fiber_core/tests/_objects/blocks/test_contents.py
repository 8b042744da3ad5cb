"""A value as bytes, and back."""

import pickle
import threading

import attrs
import numpy as np
import pytest

from fiber._objects.blocks import contents
from fiber._wire import frames


@attrs.define
class Model:
    weights: np.ndarray
    names: dict


def there_and_back(value):
    return contents.read(memoryview(frames.joined(contents.write(value))))


def views(array, body):
    """True where an array has no memory of its own."""
    return np.shares_memory(array, np.frombuffer(body, np.uint8))


@pytest.mark.parametrize(
    "value", [None, 7, "text", b"bytes", [1, {"a": (2,)}], range(3), {1, 2}, bytearray(b"x")]
)
def test_any_value_comes_back(value):
    found = there_and_back(value)
    assert (found, type(found)) == (value, type(value))


def test_arrays_are_views_that_cannot_be_written_to_wherever_they_are():
    value = {"model": Model(np.arange(6.0).reshape(2, 3), {"bias": np.ones(1)})}
    body = memoryview(frames.joined(contents.write(value)))
    model = contents.read(body)["model"]
    for array in (model.weights, model.names["bias"]):
        assert views(array, body)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    assert model.weights.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10)[::2],
        np.arange(12).reshape(3, 4)[:, 1:3],
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array(3.5),
        np.zeros((0, 3)),
        np.array([("a", 1)], dtype=[("name", "U3"), ("n", "i4")]),
    ],
    ids=["steps", "columns", "fortran", "scalar", "empty", "records"],
)
def test_arrays_of_every_shape_come_back_as_views(array):
    found = there_and_back(array)
    assert (found.tolist(), found.dtype, found.shape) == (array.tolist(), array.dtype, array.shape)
    assert not found.flags.writeable


def test_the_value_itself_is_not_copied_before_it_is_written():
    array = np.zeros(100_000)
    segments = contents.write([array, array])
    assert [len(one) for one in segments if len(one) >= array.nbytes] == [array.nbytes]
    assert views(array, segments[-1])


def test_a_value_that_is_there_twice_is_one():
    array = np.zeros(10)
    first, second = there_and_back([array, array])
    assert first is second


@pytest.mark.parametrize(
    "view",
    [
        memoryview(b"abc"),
        memoryview(bytearray(b"abcdef"))[1::2],
        memoryview(b""),
        memoryview(np.arange(6.0)),
        memoryview(np.arange(6).reshape(2, 3)),
        memoryview(np.zeros((0, 3))),
    ],
    ids=["bytes", "steps", "nothing", "doubles", "rows", "no rows"],
)
def test_a_view_comes_back_as_a_view_that_is_only_read(view):
    found = there_and_back(view)
    assert found.tolist() == view.tolist()
    assert (found.format, found.readonly, found.nbytes) == (view.format, True, view.nbytes)


def test_what_has_no_importable_home_goes_by_value():
    factor = np.full(5, 3.0)
    function, array = there_and_back((lambda x: x * factor, np.ones(5)[::-1]))
    assert function(2).tolist() == [6.0] * 5
    assert not array.flags.writeable


def test_what_cannot_be_pickled_is_an_error_that_names_it():
    with pytest.raises(
        pickle.PicklingError, match="a dict cannot be shared, because .*lock' object"
    ) as e:
        contents.write({"lock": threading.Lock()})
    assert isinstance(e.value.__cause__, TypeError)
