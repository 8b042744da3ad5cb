"""Proxies: their classes, how they are shown, copied and pickled; objects of the stdlib's names."""

import array
import copy
import pickle

import pytest

from fiber.managers import (
    Array,
    AutoProxy,
    BaseManager,
    BaseProxy,
    MakeProxyType,
    Namespace,
    SharedMemoryManager,
    Token,
    Value,
)

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.usefixtures("shared_runtime"),
    pytest.mark.timeout(120),
]


def test_a_class_is_made_once():
    made = MakeProxyType("CreatedObject", ("a", "b"))

    assert made is MakeProxyType("CreatedObject", ["a", "b"])
    assert made is not MakeProxyType("CreatedObject", ("a",))
    assert issubclass(made, BaseProxy)
    assert (made.__name__, made._exposed_, made.a.__name__) == ("CreatedObject", ("a", "b"), "a")


def test_methods_pass_on_all_they_are_given():
    class Recording(MakeProxyType("Recorded", ("method",))):
        def __init__(self): ...

        def _callmethod(self, name, args=(), kwds=None):
            return name, args, kwds

    assert Recording().method(1, self=2, name=3) == ("method", (1,), {"self": 2, "name": 3})


def test_a_proxy_and_its_token_say_what_they_are(manager):
    numbers = manager.list([1])

    assert repr(numbers).startswith("<ListProxy object, typeid 'list' at 0x")
    assert str(numbers) == "[1]"
    assert repr(numbers._token).startswith("Token(typeid='list', address=Address(")
    assert (numbers._id, numbers._manager) == (numbers._token.id, manager)


def test_a_deep_copy_is_a_copy_of_the_object(manager):
    numbers = manager.list([1, [2]])

    assert copy.deepcopy(numbers) == [1, [2]] == numbers._getvalue()


def test_a_pickle_by_hand_is_a_proxy_of_the_same_object(manager):
    numbers = manager.list([1])
    other = pickle.loads(pickle.dumps(numbers))
    other.append(2)

    assert type(other) is type(numbers)
    assert numbers[:] == [1, 2]


def test_an_automatic_proxy_asks_for_the_methods_if_none_are_given(manager):
    queue = manager.Queue()
    token = Token(queue._token.typeid, queue._token.address, queue._token.id)

    assert AutoProxy(token, "pickle").qsize() == 0
    assert not hasattr(AutoProxy(token, "pickle", exposed=("get",)), "qsize")


def test_it_is_gone_where_no_proxy_is_left(manager):
    numbers = manager.list()
    token = Token(numbers._token.typeid, numbers._token.address, numbers._token.id)
    del numbers
    manager._number_of_objects()

    with pytest.raises(EOFError, match="the managed object no longer exists"):
        BaseProxy(token, "pickle")._getvalue()


def test_a_namespace_shows_what_is_public():
    space = Namespace(b=2, a=1, _c=3)

    assert repr(space) == "Namespace(a=1, b=2)"
    assert space._c == 3


def test_a_value_is_read_and_written():
    value = Value("i", 1)
    value.set(2)

    assert value.get() == value.value == 2
    assert repr(value) == "Value('i', 2)"


def test_an_array_is_one_of_numbers():
    assert Array("d", [1, 2]) == array.array("d", [1, 2])


def test_it_names_what_to_use_instead():
    with pytest.raises(NotImplementedError, match=r"use fiber\.Array or fiber\.RawArray"):
        SharedMemoryManager()
    assert issubclass(SharedMemoryManager, BaseManager)
