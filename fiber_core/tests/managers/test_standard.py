"""Objects in a manager of the standard library's type names."""

import array

from fiber.managers import Array, Namespace, Value


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
