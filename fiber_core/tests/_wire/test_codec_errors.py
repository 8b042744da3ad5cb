"""Errors on their way: with their traceback, and whatever they are, they arrive."""

from __future__ import annotations

import sys
import threading
import traceback
from multiprocessing.pool import MaybeEncodingError

import pytest

from codec_process import roundtrip
from fiber._wire import codec, frames
from fiber.exceptions import WorkerCrashedError


class AwkwardError(Exception):
    """Takes other arguments than it keeps, as many libraries' exceptions do."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")


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


class NotedError(Exception):
    """Has state of its own."""


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
    def test_one_arrives_with_its_traceback_as_its_cause(self):
        back = carried(ValueError("as meant", 5))
        assert type(back) is ValueError
        assert back.args == ("as meant", 5)
        assert type(back.__cause__).__name__ == "RemoteTraceback"
        shown = "".join(traceback.format_exception(back))
        assert "in raised" in shown
        assert "raise error" in shown
        assert "ValueError: ('as meant', 5)" in shown

    def test_its_own_cause_is_in_the_text(self):
        try:
            try:
                raise KeyError("first")
            except KeyError as error:
                raise ValueError("second") from error
        except ValueError as error:
            back = roundtrip(codec.with_traceback(error))
        assert "KeyError: 'first'" in str(back.__cause__)

    def test_its_attributes_arrive(self):
        error = NotedError("x")
        error.detail = {"a": 1}
        assert carried(error).detail == {"a": 1}

    def test_a_frozen_one_arrives(self):
        back = carried(FrozenError(7))
        assert (type(back), back.args) == (FrozenError, (7,))
        assert "RemoteTraceback" in repr(type(back.__cause__))

    def test_one_of_fibers_own_arrives_whole(self):
        back = carried(WorkerCrashedError("it died", attempts=()))
        assert (type(back), str(back)) == (WorkerCrashedError, "it died")

    @pytest.mark.parametrize(
        "error, words",
        [
            (AwkwardError(5, "not found"), "AwkwardError('5: not found')"),
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

    def test_the_same_error_can_travel_twice(self):
        back = carried(carried(ValueError("x")))
        assert back.args == ("x",)

    def test_a_result_that_cannot_be_sent_has_the_stdlibs_word_for_it(self):
        failure = raised(TypeError("cannot pickle it"))
        error = codec.encoding_error(failure, object)
        assert type(error) is MaybeEncodingError
        assert error.__cause__ is failure
        assert "cannot pickle it" in str(error)
