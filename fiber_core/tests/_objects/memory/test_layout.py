"""Where the parts of ctypes types are."""

import ctypes

import pytest

from fiber._objects.memory import local_ctypes


class Inner(ctypes.Structure):
    _fields_ = [("a", ctypes.c_byte), ("b", ctypes.c_int)]


class Choice(ctypes.Union):
    _fields_ = [("whole", ctypes.c_int), ("part", ctypes.c_float)]


class Base(ctypes.Structure):
    _anonymous_ = ("choice",)
    _fields_ = [("head", ctypes.c_byte), ("choice", Choice)]


class Derived(Base):
    _fields_ = [("inner", Inner * 2), ("low", ctypes.c_uint, 3), ("high", ctypes.c_uint, 5)]


class Big(ctypes.BigEndianStructure):
    _fields_ = [("n", ctypes.c_int), ("many", ctypes.c_short * 3)]


def test_inherited_and_anonymous_fields_are_found():
    found = local_ctypes.fields(Derived)
    assert list(found) == ["head", "choice", "whole", "part", "inner", "low", "high"]
    assert found["whole"].begin == found["choice"].begin == 4
    assert (found["inner"].begin, found["inner"].size) == (8, ctypes.sizeof(Inner) * 2)
    assert [found[name].is_bits for name in ("inner", "low", "high")] == [False, True, True]


def test_the_other_byte_order_is_kept():
    found = local_ctypes.fields(Big)
    assert found["n"].ctype is ctypes.c_int.__ctype_be__
    assert found["many"].ctype._type_ is ctypes.c_short.__ctype_be__


def test_what_ctypes_gives_as_a_value_is_plain():
    class Own(ctypes.c_int):
        pass

    assert local_ctypes.is_plain(ctypes.c_int)
    assert not local_ctypes.is_plain(Own)
    assert local_ctypes.is_simple(Own)
    assert not local_ctypes.is_plain(Inner)


@pytest.mark.parametrize(
    "ctype",
    [
        ctypes.c_char_p,
        ctypes.c_wchar_p,
        ctypes.py_object,
        ctypes.POINTER(ctypes.c_int),
        ctypes.CFUNCTYPE(None),
    ],
)
def test_addresses_are_refused(ctype):
    with pytest.raises(TypeError, match="is an address in the memory of another host"):
        local_ctypes.check_portable(ctype)


def test_bytes_of_an_instance_are_read_and_changed():
    instance = Inner(1, 2)
    local_ctypes.put(instance, b"\5\0\0\0", 4)
    assert instance.b == 5
    assert local_ctypes.get(instance, 4, 4) == b"\5\0\0\0"
