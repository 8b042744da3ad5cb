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

    def test_a_function_without_hints_has_empty_ones(self):
        assert get_meta(lambda: None) == Meta()

    def test_hints_become_a_request(self):
        expected = ResourceRequest(cpu=2, memory=4096, devices={"gpu": 1})

        assert get_meta(train).resources == expected

    def test_image_retry_and_slots_are_kept(self):
        @meta(image="python:3.11", retry=False, slots=4)
        def work():
            pass

        assert get_meta(work) == Meta(image="python:3.11", retry=False, slots=4)

    def test_the_value_cannot_be_changed(self):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            get_meta(train).cpu = 3

    def test_hints_survive_pickling_by_value(self):
        @meta(cpu=0.5, gpu=1)
        def work():
            pass

        copy = pickle.loads(cloudpickle.dumps(work))

        assert get_meta(copy) == Meta(cpu=0.5, devices={"gpu": 1})

    def test_hints_of_one_function_are_not_seen_by_another(self):
        def make():
            def work():
                pass

            return work

        first, second = make(), make()
        meta(gpu=3)(first)

        assert get_meta(second) == Meta()


class TestStacking:
    def test_stacked_decorators_add_up(self):
        @meta(cpu=1)
        @meta(memory=100)
        @meta(gpu=1)
        def work():
            pass

        assert get_meta(work) == Meta(cpu=1, memory=100, devices={"gpu": 1})

    def test_the_outer_one_counts_where_both_give_the_same_key(self):
        @meta(cpu=8, gpu=0)
        @meta(cpu=1, gpu=4)
        def work():
            pass

        assert get_meta(work) == Meta(cpu=8, devices={"gpu": 0})
        assert get_meta(work).resources.is_empty is False

    def test_retry_false_is_a_word_and_not_silence(self):
        @meta(retry=False)
        @meta(retry=True)
        def work():
            pass

        assert get_meta(work).retry is False

    def test_a_subclass_adds_to_its_base_and_leaves_it_alone(self):
        @meta(gpu=1)
        class Faster(Simulator):
            pass

        assert get_meta(Faster) == Meta(cpu=1, devices={"gpu": 1})
        assert get_meta(Simulator) == Meta(cpu=1)


class TestWhereHintsAreFound:
    def test_under_a_partial(self):
        assert get_meta(functools.partial(train, 0.1)).cpu == 2

    def test_on_a_partial_of_a_partial_with_hints_of_its_own(self):
        half = meta(cpu=16)(functools.partial(train, 0.1))

        assert get_meta(functools.partial(half)) == Meta(cpu=16, memory=4096, devices={"gpu": 1})
        assert get_meta(train).cpu == 2

    def test_under_a_bound_method(self):
        assert get_meta(Simulator().step) == Meta(devices={"gpu": 2})

    def test_on_a_class_and_on_its_instances(self):
        assert get_meta(Simulator) == get_meta(Simulator()) == Meta(cpu=1)

    def test_on_the_run_method_of_a_class(self):
        @meta(memory=7)
        class Worker:
            @meta(gpu=1, memory=5)
            def run(self):
                pass

        assert get_meta(Worker()) == Meta(memory=7, devices={"gpu": 1})

    def test_on_the_call_method_of_an_object(self):
        class Task:
            @meta(gpu=1)
            def __call__(self):
                pass

        assert get_meta(Task()) == Meta(devices={"gpu": 1})

    def test_through_a_wrapper_that_uses_functools_wraps(self):
        @functools.wraps(train)
        def wrapper(rate):
            return train(rate)

        assert get_meta(wrapper) == get_meta(train)

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
    def test_an_unknown_key_names_the_known_ones(self, monkeypatch):
        monkeypatch.setattr(hints, "_installed_kinds", lambda: frozenset({"gpu", "tpu"}))

        with pytest.raises(TypeError, match="key 'gpus'; known are cpu, gpu, image, .*, tpu"):
            meta(gpus=1)

    def test_the_kind_of_an_installed_provider_is_accepted(self, monkeypatch):
        monkeypatch.setattr(hints, "_installed_kinds", lambda: frozenset({"gpu", "tpu"}))

        @meta(tpu=4)
        def work():
            pass

        assert get_meta(work).devices == {"tpu": 4}

    def test_installed_kinds_are_not_looked_up_for_the_keys_of_the_core(self, monkeypatch):
        monkeypatch.setattr(hints, "_installed_kinds", lambda: pytest.fail("looked up"))

        meta(cpu=1, memory=1, gpu=1, image="i", retry=True, slots=1)

    def test_gpu_is_known_to_the_installed_plugins(self):
        assert "gpu" in hints._installed_kinds()

    @pytest.mark.parametrize(
        "key,value",
        [
            ("cpu", "2"),
            ("cpu", True),
            ("memory", 1.5),
            ("gpu", 1.0),
            ("gpu", "1"),
            ("gpu", True),
            ("image", 3),
            ("retry", 1),
            ("slots", 1.5),
        ],
    )
    def test_a_value_of_the_wrong_type_names_its_key(self, key, value):
        with pytest.raises(TypeError, match=f"^{key} must be"):
            meta(**{key: value})

    @pytest.mark.parametrize(
        "key,value",
        [
            ("cpu", 0),
            ("cpu", -1.5),
            ("cpu", math.nan),
            ("memory", 0),
            ("memory", "4"),
            ("memory", "lots"),
            ("gpu", -1),
            ("image", " "),
            ("slots", 0),
        ],
    )
    def test_a_value_out_of_range_names_its_key(self, key, value):
        with pytest.raises(ValueError, match=f"^{key} "):
            meta(**{key: value})

    def test_a_class_without_run(self):
        with pytest.raises(TypeError, match="the class .*Empty: it has no run"):

            @meta(cpu=1)
            class Empty:
                pass

            assert Empty

    @pytest.mark.parametrize("target", [3, "train", None])
    def test_what_cannot_be_called(self, target):
        with pytest.raises(TypeError, match="decorate a function or a class with run"):
            meta(cpu=1)(target)

    def test_a_bound_method_because_it_is_made_anew_each_time(self):
        with pytest.raises(TypeError, match="decorate a function or a class with run"):
            meta(cpu=1)(Simulator().step)

    def test_a_builtin_says_how_to_go_on(self):
        with pytest.raises(TypeError, match=r"wrap it in a function or in functools\.partial"):
            meta(cpu=1)(math.sqrt)

        assert get_meta(meta(cpu=1)(functools.partial(math.sqrt))).cpu == 1


def _plain():
    """A function without hints."""


class TestAsks:
    def test_functions_without_hints_share_one_value(self):
        assert get_meta(_plain) is get_meta(len)

    def test_it_asks_for_nothing(self):
        assert not get_meta(_plain).asks

    @pytest.mark.parametrize("given", [{"cpu": 1}, {"memory": 5}, {"gpu": 1}, {"image": "a"}])
    def test_hints_of_resources_ask(self, given):
        assert get_meta(meta(**given)(lambda: None)).asks

    @pytest.mark.parametrize("given", [{"retry": False}, {"slots": 2}, {"gpu": 0}])
    def test_hints_that_are_no_resources_do_not_ask(self, given):
        assert not get_meta(meta(**given)(lambda: None)).asks
