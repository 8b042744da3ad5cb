"""Objects defined in ``__main__``: by reference where children load it, else by value."""

from __future__ import annotations

import sys

import pytest

from codec_process import CodecProcess, roundtrip, typed_at_prompt
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

    def test_objects_that_children_can_look_up_go_by_reference(self, main):
        for thing in (main.work, main.Thing, main.Thing.Inner, main.Color.RED):
            assert roundtrip(thing) is thing

    def test_also_beside_what_goes_by_value(self, main):
        back = roundtrip([lambda: 5, main.work, main.Thing, main.Color.RED])
        assert back[0]() == 5
        assert back[1:] == [main.work, main.Thing, main.Color.RED]

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


class TestMainByValue:
    @pytest.fixture
    def there(self, main_by_value):
        with CodecProcess() as there:
            yield there

    def test_functions_of_a_prompt_work_in_another_process(self, there):
        space = typed_at_prompt(
            "import math\ndef area(r): return math.pi * r ** 2\nsquare = lambda x: x * x"
        )
        assert there.call(space["area"], 1) == pytest.approx(3.14159, abs=1e-4)
        assert there.call(space["square"], 7) == 49

    def test_a_big_global_that_is_not_used_is_not_sent(self, main_by_value):
        space = typed_at_prompt("big = bytes(10**7)\nsmall = 3\ndef work(): return small")
        assert sum(map(len, codec.dumps(space["work"]))) < 5000

    def test_one_that_is_used_is_sent_once(self, main_by_value):
        space = typed_at_prompt("big = bytes(10**6)\ndef a(): return big\ndef b(): return big")
        assert sum(map(len, codec.dumps([space["a"], space["b"]]))) < 1.1 * 10**6

    def test_members_of_an_enum_are_the_same_after_a_journey(self, there):
        space = typed_at_prompt(
            "import enum\n"
            "class Color(enum.Enum):\n    RED = 1\n    BLUE = 2\n"
            "def other(color): return Color.BLUE if color is Color.RED else None"
        )
        assert there.call(space["other"], space["Color"].RED) is space["Color"].BLUE

    def test_an_exception_defined_in_main_is_caught_by_its_class(self, there):
        space = typed_at_prompt(
            "class MyError(Exception):\n    pass\ndef fail(): raise MyError('as meant', 5)"
        )
        with pytest.raises(space["MyError"]) as caught:
            there.call(space["fail"])
        assert caught.value.args == ("as meant", 5)

    def test_instances_keep_their_class(self, there):
        space = typed_at_prompt(
            "class Point:\n    def __init__(self, x): self.x = x\ndef same(p): return p"
        )
        back = there.call(space["same"], space["Point"](5))
        assert type(back) is space["Point"]
        assert back.x == 5

    def test_methods_and_decorated_functions_work_in_another_process(self, there):
        space = typed_at_prompt(
            "import functools\n"
            "def doubled(f):\n"
            "    @functools.wraps(f)\n"
            "    def inner(*a): return 2 * f(*a)\n"
            "    return inner\n"
            "@doubled\n"
            "def work(x): return x + offset\n"
            "offset = 10\n"
            "class Thing:\n    def method(self, x): return work(x)\n"
        )
        assert there.call(space["work"], 1) == 22
        assert there.call(space["Thing"]().method, 2) == 24

    def test_defaults_annotations_and_attributes_come_along(self, there):
        space = typed_at_prompt("def work(a, *, b: int = 5): 'words'\nwork.note = 'kept'")
        look = typed_at_prompt(
            "def look(f): return (f.__kwdefaults__, f.__doc__, f.note, f.__annotations__)"
        )["look"]
        told = there.call(look, space["work"])
        assert told == ({"b": 5}, "words", "kept", {"b": int})
