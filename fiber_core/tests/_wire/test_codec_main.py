"""Objects defined in ``__main__``: by reference where children load it, else by value."""

from __future__ import annotations

import sys
import textwrap

import numpy as np
import pytest

from codec_process import CodecProcess, Prompt, roundtrip
from fiber._wire import codec, frames


class TestMainByReference:
    @pytest.fixture
    def main(self, main_by_reference, monkeypatch):
        module = type(sys)("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        source = """
import enum

class Thing:
    class Inner:
        pass

class Color(enum.Enum):
    RED = 1

def work(x):
    return x

shadowed = work
make = lambda: 1
def work(x):
    return -x
"""
        exec(source, vars(module))
        return module

    def test_what_children_can_look_up_goes_by_reference_also_beside_what_goes_by_value(self, main):
        things = [main.work, main.Thing, main.Thing.Inner, main.Color.RED]
        value, *back = roundtrip([lambda: 5, *things])
        assert value() == 5
        assert back == things

    def test_what_they_do_not_find_under_its_name_goes_by_value(self, main):
        back = roundtrip(main.shadowed)
        assert back is not main.work
        assert (back(1), main.work(1)) == (1, -1)
        assert roundtrip(main.make)() == 1

    def test_a_by_value_function_uses_the_main_of_the_receiver(self, main):
        exec("rate = 2\nuse = lambda x: x * rate", vars(main))
        body = memoryview(frames.joined(codec.dumps(main.use)))
        main.rate = 5
        assert codec.loads(body)(10) == 50


@pytest.fixture
def there(main_by_value):
    with CodecProcess() as there:
        yield there


@pytest.fixture
def prompt():
    return Prompt()


def test_defaults_annotations_and_attributes_come_along(prompt, there):
    prompt.type("def work(a, *, b: int = 5): 'words'\nwork.note = 'kept'")
    prompt.type("def look(f): return (f.__kwdefaults__, f.__doc__, f.note, f.__annotations__)")
    told = there.call(prompt["look"], prompt["work"])
    assert told == ({"b": 5}, "words", "kept", {"b": int})


class TestWhatAWorkerKeeps:
    def test_one_lock_for_all_functions(self, prompt, there):
        prompt.type(
            """
            import threading
            lock, again = threading.Lock(), threading.RLock()

            def first():
                with lock, again:
                    return id(lock), id(again)

            second = lambda: (lock.acquire(blocking=False), lock.release(), id(lock), id(again))
            """
        )
        ids = there.call(prompt["first"])
        assert there.call(prompt["second"]) == (True, None, *ids)
        assert there.call(prompt["first"]) == ids

    def test_a_lock_held_by_the_sender_is_free_in_the_receiver(self, prompt, there):
        prompt.type("import threading\nlock = threading.Lock()\nheld = lambda: lock.locked()")
        with prompt["lock"]:
            assert there.call(prompt["held"]) is False


class TestWhatAPromptChanges:
    @pytest.mark.parametrize(
        "before, after",
        [
            ("value = 5", "value = 7"),
            ("value = 'a'", "value = 'b'"),
            ("value = [1]", "value.append(2)"),
            ("value = {'rate': 1}", "value['rate'] = 2"),
            ("value = (1, [2])", "value[1].append(3)"),
            ("import numpy as np\nvalue = np.zeros(3)", "value[:] = 1"),
            ("class value:\n    x = 1", "class value:\n    x = 2"),
            ("value = lambda: 1", "value = lambda: 2"),
            ("value = 5", "del value\nvalue = 6"),
            ("value = 5", "value = lambda: 1"),
        ],
    )
    def test_a_value_changed_by_the_sender_is_changed_in_the_receiver(
        self, prompt, there, before, after
    ):
        prompt.type(before)
        prompt.type(
            """
            def work():
                found = getattr(value, "x", value)
                return found() if callable(found) else found
            """
        )
        for source in (before, after):
            if source is after:
                prompt.type(after)
            found, wanted = there.call(prompt["work"]), prompt["work"]()
            assert np.array_equal(found, wanted) if type(found) is np.ndarray else found == wanted

    def test_only_what_was_changed_is(self, prompt, there):
        prompt.type(
            """
            count, rate = 0, 1

            def step():
                global count
                count += rate
                return count
            """
        )
        assert there.call(prompt["step"]) == 1
        prompt.type("rate = 10")
        assert there.call(prompt["step"]) == 11
        prompt.type("count = 5")
        assert there.call(prompt["step"]) == 15

    def test_an_older_pickle_does_not_bring_an_older_value_back(self, prompt, there):
        """Tasks of a call that was made before may come after."""
        prompt.type("value = 1\ndef work(): return value")
        older = frames.joined(codec.dumps((prompt["work"], ())))
        assert there.call_pickled(older) == 1
        prompt.type("value = 2")
        assert there.call(prompt["work"]) == 2
        assert there.call_pickled(older) == 2

    def test_a_pickle_of_this_process_changes_no_globals_of_it(self, prompt, monkeypatch):
        module = type(sys)("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        exec("value = 1\ndef work(): return value", vars(module))
        for number in (1, 2):
            module.value = number
            body = memoryview(frames.joined(codec.dumps(module.work)))
            module.value = "mine"
            assert codec.loads(body)() == "mine"

    def test_each_sender_has_numbers_of_its_own(self, prompt, there, monkeypatch):
        """A second process that sends the first time does not undo what the first one sent."""
        prompt.type("value = 1\ndef work(): return value")
        assert there.call(prompt["work"]) == 1
        prompt.type("value = 2")
        assert there.call(prompt["work"]) == 2
        monkeypatch.setattr(codec, "_token", "another")
        prompt.type("value = 3")
        assert there.call(prompt["work"]) == 2
        prompt.type("value = 4")
        assert there.call(prompt["work"]) == 4


class TestModulesWithAHome:
    @pytest.fixture
    def home(self, folder, monkeypatch):
        (folder / "homely.py").write_text(
            textwrap.dedent(
                """
                import threading

                count, rate = 0, 1
                lock = threading.Lock()

                def stepper():
                    def step():
                        global count
                        with lock:
                            count += rate
                            return count
                    return step

                def look():
                    return count, rate
                """
            )
        )
        monkeypatch.syspath_prepend(folder)
        yield folder
        sys.modules.pop("homely", None)

    def test_the_module_itself_is_the_namespace_and_its_globals_are_never_replaced(self, home):
        import homely

        with CodecProcess(paths=[home]) as there:
            assert there.call(homely.stepper()) == 1
            homely.rate = 100
            assert there.call(homely.stepper()) == 2
            assert there.call(homely.look) == (2, 1)
        assert homely.look() == (0, 100)

    def test_functions_of_a_missing_module_bring_their_globals(self, home):
        import homely

        with CodecProcess() as there:
            assert [there.call(homely.stepper()) for _ in range(3)] == [1, 2, 3]


class TestFingerprints:
    def test_looking_at_a_value_runs_no_code_of_its_own(self):
        class Loud:
            def __reduce__(self):
                raise AssertionError("it was called")

        assert codec._fingerprint([Loud()]) is None

    def test_no_value_is_kept_alive(self):
        import gc
        import weakref

        def function():
            """Goes away."""

        gone = weakref.ref(function)
        codec.globals_versions("__main__", {"big": [0] * 1000, "function": function})
        del function
        gc.collect()
        assert gone() is None
