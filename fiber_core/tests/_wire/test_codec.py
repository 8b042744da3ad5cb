"""Objects there and back: by reference where they have a home, by value where not, errors always."""

from __future__ import annotations

import builtins
import functools
import pickle
import sys
import threading
from multiprocessing.pool import MaybeEncodingError

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec_process import roundtrip
from fiber._wire import codec, frames
from fiber.exceptions import WireError, WorkerCrashedError
from wire_world import in_thread


def test_reducers_are_registered_once_a_library_is_imported_to_its_end(monkeypatch):
    asked, ready = [], []
    monkeypatch.setattr(codec, "_libraries", ())
    codec.register_when_imported("a_library", lambda: (asked.append(1), bool(ready))[1])
    with codec.pickling_into("something"):
        assert asked == []
        monkeypatch.setitem(sys.modules, "a_library", codec)
        codec.set_envelope(codec.set_envelope("something else"))
        # not to its end so far
        assert asked
        asked.clear()
        ready.append(True)
        codec.set_envelope(codec.set_envelope("something else"))
        codec.set_envelope(codec.set_envelope("something else"))
        assert asked == [1]


@pytest.mark.usefixtures("main_either_way")
class TestValues:
    @settings(max_examples=25)
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
        )
    )
    def test_plain_ones_come_back(self, value):
        assert roundtrip(value) == value

    def test_what_has_a_home_goes_by_reference(self):
        for thing in (functools.reduce, pickle.Pickler, WireError, len, threading.Thread):
            assert roundtrip(thing) is thing
            assert sum(map(len, codec.dumps(thing))) < 200

    def test_lambdas_and_closures_come_back(self):
        def adder(n):
            return lambda x: x + n

        def factorial(n):
            return 1 if n < 2 else n * factorial(n - 1)

        assert roundtrip(functools.partial(adder(1), 2))() == 3
        assert roundtrip(factorial)(5) == 120

    @pytest.mark.parametrize("beside", [None, lambda: None], ids=["by_reference", "by_value"])
    def test_reducers_that_are_given_precede_those_of_the_type(self, monkeypatch, beside):
        monkeypatch.setattr(codec, "_main_by_reference", True)
        pickled = codec.split([1.5, range(3), beside], [], {range: lambda of: (len, (list(of),))})
        assert pickle.loads(pickled)[:2] == [1.5, 3]

    @pytest.mark.parametrize("value", [threading.Lock(), (x for x in ""), sys._getframe()])
    def test_what_cannot_be_pickled_is_an_error(self, value):
        with pytest.raises(TypeError, match="cannot pickle"):
            codec.dumps([value])

    def test_too_deep_a_structure_is_an_error_and_no_crash(self):
        deep = []
        for _ in range(100_000):
            deep = [deep]
        with pytest.raises((RecursionError, pickle.PicklingError)):
            codec.dumps(deep)
        while deep:
            deep = deep.pop()

    @pytest.mark.parametrize("body", [b"", bytes(20), frames.joined(frames.pack(b"")), b"x" * 50])
    def test_what_is_no_pickle_is_an_error(self, body):
        with pytest.raises((WireError, EOFError, pickle.UnpicklingError)):
            codec.loads(memoryview(body))


@pytest.mark.usefixtures("main_either_way")
class TestArrays:
    def test_large_ones_are_copied_neither_on_their_way_out_nor_in(self):
        array = np.arange(100_000)
        segments = codec.dumps(array)
        views = [s for s in segments if isinstance(s, memoryview)]
        assert any(np.shares_memory(np.frombuffer(view, np.uint8), array) for view in views)
        body = bytearray(frames.joined(segments))
        assert len(body) < array.nbytes + 1000
        back = codec.loads(memoryview(body))
        assert np.shares_memory(back, np.frombuffer(body, np.uint8))

    @pytest.mark.parametrize("count", [0, 1, 10, 511, 512, 513, 100_000])
    @pytest.mark.parametrize("name", ["", "x", "yz" * 7])
    def test_they_arrive_equal_writable_and_aligned(self, count, name):
        value = {name: np.arange(count, dtype=np.float64), "other": np.ones(count, np.int8)}
        back = roundtrip(value)
        for key, array in back.items():
            assert np.array_equal(array, value[key])
            assert array.flags.writeable
            # an empty one has no place
            assert array.ctypes.data % 16 == 0 or not count

    def test_small_ones_do_not_keep_each_other_alive(self):
        body = bytearray(frames.joined(codec.dumps([np.arange(4), np.arange(100_000)])))
        small, _ = codec.loads(memoryview(body))
        assert not np.shares_memory(small, np.frombuffer(body, np.uint8))

    @pytest.mark.parametrize(
        "array",
        [
            np.arange(20_000)[::2],
            np.asfortranarray(np.ones((100, 100))),
            np.array(["a", None], dtype=object),
            np.zeros(5000, dtype=[("a", "i4"), ("b", "f8")]),
        ],
    )
    def test_of_any_layout_they_arrive_equal(self, array):
        assert np.array_equal(roundtrip(array), array)

    def test_one_pickle_has_nothing_out_of_band(self):
        array = np.arange(100_000)
        whole = codec.pickled(array)
        array[:] = 0
        assert np.array_equal(pickle.loads(whole), np.arange(100_000))


class TestCarriers:
    def test_objects_know_what_carries_them(self):
        seen = []

        class Curious:
            def __reduce__(self):
                seen.append(codec.envelope())
                return int, ()

        with codec.pickling_into("outer"):
            codec.pickled(Curious())
            with codec.pickling_into("inner"):
                codec.dumps(Curious())
            codec.dumps(Curious())
            with pytest.raises(TypeError), codec.pickling_into("failing"):
                codec.dumps(threading.Lock())
            codec.dumps(Curious())
        codec.dumps(Curious())
        assert seen == ["outer", "inner", "outer", "outer", None]

    def test_each_thread_has_its_own(self):
        with codec.pickling_into("mine"):
            assert in_thread(codec.envelope)() is None


@pytest.mark.parametrize(
    "spec, file, found",
    [
        (None, None, False),
        (None, "/nowhere/script.py", False),
        (None, __file__, True),
        ("package.module", __file__, True),
        ("package.__main__", __file__, False),
        ("__main__", __file__, False),
    ],
)
def test_children_can_load_scripts_and_modules(monkeypatch, spec, file, found):
    from importlib.machinery import ModuleSpec

    main = type(sys)("__main__")
    main.__spec__ = None if spec is None else ModuleSpec(spec, None)
    if file is not None:
        main.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(codec, "_main_by_reference", None)
    assert codec.main_by_reference() is found
    # it does not change in the life of a process
    monkeypatch.delattr(main, "__file__", raising=False)
    assert codec.main_by_reference() is found


class AwkwardError(Exception):
    """Takes other arguments than it keeps, as many libraries' exceptions do."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code = code


class UnpicklableError(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class ReducesError(Exception):
    def __reduce__(self):
        raise RuntimeError("no pickle of me")


class ChangesError(Exception):
    def __reduce__(self):
        return str, ("I was an exception",)


class SpeechlessError(ReducesError):
    def __repr__(self):
        raise RuntimeError("no words")

    __str__ = __repr__


class FrozenError(Exception):
    def __setattr__(self, name, value):
        raise AttributeError(name)


def raised(error):
    """The error with a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


def carried(error):
    return roundtrip(codec.with_traceback(raised(error)))


@pytest.mark.usefixtures("main_either_way")
class TestErrors:
    def test_one_whose_constructor_takes_other_arguments_arrives(self):
        back = carried(AwkwardError(5, "not found"))
        assert (type(back), back.args, back.code) == (AwkwardError, ("5: not found",), 5)

    @pytest.mark.skipif(sys.version_info < (3, 11), reason="groups are new in Python 3.11")
    def test_so_do_those_of_a_group(self):
        group = vars(builtins)["ExceptionGroup"]
        inner = group("inner", (AwkwardError(6, "gone"),))
        back = carried(group("outer", [AwkwardError(5, "not found"), KeyError(1), inner]))
        first, second, third = back.exceptions
        assert (type(back), back.message) == (group, "outer")
        assert (type(first), first.args, first.code) == (AwkwardError, ("5: not found",), 5)
        assert (type(second), second.args) == (KeyError, (1,))
        assert [(type(one), one.code) for one in third.exceptions] == [(AwkwardError, 6)]

    def test_a_frozen_one_arrives(self):
        back = carried(FrozenError(7))
        assert (type(back), back.args) == (FrozenError, (7,))
        assert "RemoteTraceback" in repr(type(back.__cause__))

    def test_one_that_fiber_alone_raised_again_is_told_as_it_came(self):
        came = carried(KeyError(1))
        again = roundtrip(codec.with_traceback(came))
        assert str(again.__cause__) == str(came.__cause__)
        assert "raise" in str(again.__cause__)

    def test_one_of_fibers_own_arrives_whole(self):
        back = carried(WorkerCrashedError("it died", attempts=()))
        assert (type(back), str(back)) == (WorkerCrashedError, "it died")

    @pytest.mark.parametrize(
        "error, words",
        [
            (UnpicklableError("has a lock"), "UnpicklableError('has a lock')"),
            (ReducesError("breaks"), "no pickle of me"),
            (ChangesError("turns"), "an exception was unpickled as str"),
            (SpeechlessError("silent"), "<SpeechlessError, whose repr() raises RuntimeError>"),
        ],
    )
    def test_one_that_cannot_travel_is_replaced_by_its_words(self, error, words):
        back = carried(error)
        assert type(back) is MaybeEncodingError
        assert words in str(back)
        assert type(error).__name__ in str(back.__cause__)
        assert "in raised" in str(back.__cause__)

    def test_one_that_cannot_be_loaded_leaves_the_rest_of_the_message_intact(self, monkeypatch):
        """Its class may exist on the worker's host only."""
        module = type(sys)("only_there")
        monkeypatch.setitem(sys.modules, "only_there", module)
        module.Strange = type("Strange", (Exception,), {"__module__": "only_there"})
        body = frames.joined(
            codec.dumps(["good", codec.with_traceback(raised(module.Strange("far")))])
        )
        monkeypatch.delitem(sys.modules, "only_there")

        good, error = codec.loads(memoryview(body))
        assert good == "good"
        assert type(error) is MaybeEncodingError
        assert "only_there" in str(error)
        assert "Strange: far" in str(error.__cause__)

    def test_a_result_that_cannot_be_sent_has_the_stdlibs_word_for_it(self):
        failure = raised(TypeError("cannot pickle it"))
        error = codec.encoding_error(failure, object)
        assert type(error) is MaybeEncodingError
        assert error.__cause__ is failure
        assert "cannot pickle it" in str(error)
