import functools
import math
import pickle

import attrs
import cloudpickle
import pytest

from fiber import hints
from fiber.hints import Meta, get_meta, meta
from fiber.model import ResourceRequest


@meta(cpu=2, memory="4Gi", gpu=1)
def train(rate):
    return rate


@meta(cpu=1)
class Simulator:
    def run(self):
        return "ran"

    @meta(gpu=2)
    def step(self):
        return "stepped"


class TestWhatIsStored:
    def test_a_decorated_function_is_itself_and_holds_its_hints(self):
        assert train(0.1) == 0.1
        assert get_meta(train) == Meta(cpu=2, memory=4096, devices={"gpu": 1})
        expected = ResourceRequest(cpu=2, memory=4096, devices={"gpu": 1})
        assert get_meta(train).resources == expected
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            get_meta(train).cpu = 3

    def test_hints_survive_pickling_by_value(self):
        work = meta(cpu=0.5, image="python:3.11", retry=False, slots=4)(lambda: None)
        copy = pickle.loads(cloudpickle.dumps(work))
        assert get_meta(copy) == Meta(cpu=0.5, image="python:3.11", retry=False, slots=4)

    def test_functions_without_hints_share_one_value_which_asks_for_nothing(self):
        first, second = ((lambda: None) for _ in range(2))
        meta(gpu=3)(first)
        assert get_meta(second) is get_meta(len)
        assert get_meta(second) == Meta()
        assert not get_meta(second).asks

    @pytest.mark.parametrize(
        "given,asks",
        [
            *(({key: value}, True) for key, value in [("cpu", 1), ("memory", 5), ("gpu", 1)]),
            ({"image": "a"}, True),
            *(({key: value}, False) for key, value in [("retry", False), ("slots", 2), ("gpu", 0)]),
        ],
    )
    def test_hints_of_resources_ask_and_others_do_not(self, given, asks):
        assert get_meta(meta(**given)(lambda: None)).asks is asks


class TestStacking:
    @pytest.mark.parametrize(
        "outer,inner,expected",
        [
            ({"cpu": 1}, {"memory": 100, "gpu": 1}, Meta(cpu=1, memory=100, devices={"gpu": 1})),
            ({"cpu": 8, "gpu": 0}, {"cpu": 1, "gpu": 4}, Meta(cpu=8, devices={"gpu": 0})),
            ({"retry": False}, {"retry": True}, Meta(retry=False)),
        ],
        ids=["they add up", "the outer one counts", "false is a word and not silence"],
    )
    def test_stacked_decorators(self, outer, inner, expected):
        found = get_meta(meta(**outer)(meta(**inner)(lambda: None)))
        assert found == expected
        assert found.resources.is_empty is (expected.cpu is None)

    def test_a_subclass_adds_to_its_base_and_leaves_it_alone(self):
        @meta(gpu=1)
        class Faster(Simulator):
            pass

        assert get_meta(Faster) == Meta(cpu=1, devices={"gpu": 1})
        assert get_meta(Simulator) == Meta(cpu=1)


class TestWhereHintsAreFound:
    def test_under_partials_which_may_have_hints_of_their_own(self):
        assert get_meta(functools.partial(train, 0.1)).cpu == 2
        half = meta(cpu=16)(functools.partial(train, 0.1))
        assert get_meta(functools.partial(half)) == Meta(cpu=16, memory=4096, devices={"gpu": 1})
        assert get_meta(train).cpu == 2

    def test_on_a_class_its_instances_and_under_a_bound_method(self):
        assert get_meta(Simulator) == get_meta(Simulator()) == Meta(cpu=1)
        assert get_meta(Simulator().step) == Meta(devices={"gpu": 2})

    def test_on_the_run_and_the_call_method_of_an_object(self):
        @meta(memory=7)
        class Worker:
            @meta(gpu=1, memory=5)
            def run(self):
                pass

        class Task:
            @meta(gpu=1)
            def __call__(self):
                pass

        assert get_meta(Worker()) == Meta(memory=7, devices={"gpu": 1})
        assert get_meta(Task()) == Meta(devices={"gpu": 1})

    def test_through_a_wrapper_that_uses_functools_wraps(self):
        assert get_meta(functools.wraps(train)(lambda rate: rate)) == get_meta(train)

    @pytest.mark.parametrize("kind", [staticmethod, classmethod])
    def test_on_static_and_class_methods(self, kind):
        class Holder:
            work = meta(cpu=3)(kind(lambda *_: None))

        assert get_meta(Holder.work) == Meta(cpu=3)

    def test_not_on_objects_that_answer_every_attribute(self):
        class Proxy:
            def __getattr__(self, name):
                return name

        assert get_meta(Proxy()) == Meta()


class TestWhatIsRefused:
    def test_kinds_of_installed_providers_are_known_and_no_other_key(self, monkeypatch):
        assert "gpu" in hints._installed_kinds()
        monkeypatch.setattr(hints, "_installed_kinds", lambda: frozenset({"gpu", "tpu"}))
        assert get_meta(meta(tpu=4)(lambda: None)).devices == {"tpu": 4}
        with pytest.raises(TypeError, match="key 'gpus'; known are cpu, gpu, image, .*, tpu"):
            meta(gpus=1)

    @pytest.mark.parametrize(
        "key,of_wrong_types,out_of_range",
        [
            ("cpu", ["2", True], [0, -1.5, math.nan]),
            ("memory", [1.5], [0, "4", "lots"]),
            ("gpu", [1.0, "1", True], [-1]),
            ("image", [3], [" "]),
            ("retry", [1], []),
            ("slots", [1.5], [0]),
        ],
    )
    def test_a_value_of_the_wrong_type_or_out_of_range_names_its_key(
        self, key, of_wrong_types, out_of_range
    ):
        for value in of_wrong_types:
            with pytest.raises(TypeError, match=f"^{key} must be"):
                meta(**{key: value})
        for value in out_of_range:
            with pytest.raises(ValueError, match=f"^{key} "):
                meta(**{key: value})

    # a bound method is made anew each time
    @pytest.mark.parametrize(
        "target,text",
        [
            *((one, "a function or a class with run") for one in (3, "x", None, Simulator().step)),
            (type("Empty", (), {}), "the class .*Empty: it has no run"),
        ],
    )
    def test_what_cannot_be_called_a_bound_method_and_a_class_without_run(self, target, text):
        with pytest.raises(TypeError, match=text):
            meta(cpu=1)(target)

    def test_a_builtin_says_how_to_go_on(self):
        with pytest.raises(TypeError, match=r"wrap it in a function or in functools\.partial"):
            meta(cpu=1)(math.sqrt)

        assert get_meta(meta(cpu=1)(functools.partial(math.sqrt))).cpu == 1
