"""The fake provider and the built-in one pass the kit for resource providers."""

from typing import ClassVar

import pytest

from fiber._agent.resources.nvidia import NvidiaProvider
from fiber.model import Device
from fiber.testing import FakeProvider, ResourceProviderConformance


class TestFakeProvider(ResourceProviderConformance):
    samples: ClassVar = {"[]": 0, '["F-0"]': 1, '["F-0", "F-1", "F-2"]': 3}

    @pytest.fixture
    def provider(self):
        return FakeProvider(3)

    def test_its_probe_finds_its_count(self, provider):
        from fiber._agent.resources import probe

        assert probe(provider) == tuple(
            Device(kind="fake", id=f"F-{n}", index=n, name="Fake") for n in range(3)
        )


class TestNvidiaProvider(ResourceProviderConformance):
    samples: ClassVar = {
        "[]": 0,
        '[{"index": 0, "uuid": "GPU-1", "name": "NVIDIA H100", "memory": 81559},'
        ' {"index": 1, "uuid": "GPU-2", "name": "NVIDIA H100", "memory": null}]': 2,
    }

    @pytest.fixture
    def provider(self):
        return NvidiaProvider()


class ShowsAll(FakeProvider):
    def environment(self, devices):
        return {}


class HidesNonsense(FakeProvider):
    def parse(self, output):
        try:
            return super().parse(output)
        except Exception:
            return ()


@pytest.mark.parametrize(
    "wrong, test",
    [
        (ShowsAll(), "test_a_process_without_devices_is_told_so"),
        (ShowsAll(), "test_a_process_sees_its_devices_and_no_others"),
        (HidesNonsense(), "test_output_that_makes_no_sense_is_an_error_that_quotes_it"),
        (FakeProvider(kind="cpu"), "test_its_kind_can_be_a_keyword_of_meta"),
        (FakeProvider(kind="two words"), "test_its_kind_can_be_a_keyword_of_meta"),
    ],
)
def test_the_kit_finds_what_is_wrong(wrong, test):
    class Mine(ResourceProviderConformance):
        samples = TestFakeProvider.samples

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(Mine(), test)(wrong)


def test_samples_must_be_given():
    with pytest.raises(AssertionError, match="give samples"):
        ResourceProviderConformance().test_it_reads_what_was_recorded(FakeProvider())
