"""Tests of the conformance kit for resource providers."""

# ruff: noqa: D102  a test's name is its sentence

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from fiber._agent.resources.probe import probe
from fiber.abc import ResourceProvider
from fiber.exceptions import ResourceError
from fiber.model import Device
from fiber.testing.kit.base import Facts, Kit

__all__ = ["ResourceProviderConformance"]

#: words of ``fiber.meta`` that mean something else
_TAKEN = {"cpu", "memory", "image", "retry", "slots"}


class ResourceProviderConformance(Kit):
    """Tests of the contract of :class:`fiber.abc.ResourceProvider`.

    Subclass it with one fixture, ``provider``, and with ``samples``: outputs of the probe
    recorded on real hosts, so that parsing is tested without devices.
    """

    kit_name = "resource"

    #: outputs of the probe with their numbers of devices
    samples: Mapping[str, int] = MappingProxyType({})

    @pytest.fixture
    def provider(self) -> ResourceProvider:
        """The provider; every subclass must override this fixture."""
        msg = "a subclass of ResourceProviderConformance must have a fixture named provider"
        raise NotImplementedError(msg)

    @pytest.fixture(autouse=True)
    def _subject(self, provider: ResourceProvider, facts: Facts) -> None:
        facts["name"] = provider.kind

    def test_its_kind_can_be_a_keyword_of_meta(self, provider: ResourceProvider) -> None:
        assert provider.kind.isidentifier()
        assert provider.kind == provider.kind.lower()
        assert provider.kind not in _TAKEN

    def test_its_device_class_is_a_vendor_and_a_word(self, provider: ResourceProvider) -> None:
        assert re.fullmatch(r"[a-z0-9.-]+\.[a-z]+/[A-Za-z0-9._-]+", provider.device_class)

    def test_it_can_be_sent_to_a_process(self, provider: ResourceProvider) -> None:
        copy = pickle.loads(pickle.dumps(provider))

        assert (copy.kind, copy.device_class) == (provider.kind, provider.device_class)
        assert list(copy.probe()) == list(provider.probe())

    def test_its_probe_is_an_argv(self, provider: ResourceProvider) -> None:
        argv = provider.probe()

        assert not isinstance(argv, str)
        assert list(argv)
        assert all(isinstance(word, str) for word in argv)

    def test_its_probe_runs_here_whatever_there_is(self, provider: ResourceProvider) -> None:
        _check_devices(provider, probe(provider))

    def test_it_reads_what_was_recorded(self, provider: ResourceProvider) -> None:
        assert self.samples, "give samples of what the probe prints"
        for output, count in self.samples.items():
            devices = tuple(provider.parse(output))
            assert len(devices) == count, output
            _check_devices(provider, devices)

    def test_output_that_makes_no_sense_is_an_error_that_quotes_it(
        self, provider: ResourceProvider
    ) -> None:
        for output in ("no such devices\x07 here", "{]", '{"devices": 3}', "[[[1]]]"):
            with pytest.raises(ResourceError) as caught:
                provider.parse(output)
            assert repr(output)[1:8] in str(caught.value)

    def test_a_process_sees_its_devices_and_no_others(self, provider: ResourceProvider) -> None:
        devices = max((tuple(provider.parse(text)) for text in self.samples), key=len, default=())
        if not devices:
            pytest.skip("the samples have no devices")
        seen = [_environment(provider, devices[:count]) for count in range(len(devices) + 1)]

        assert len({tuple(sorted(environ.items())) for environ in seen}) == len(seen)
        assert len({tuple(sorted(environ)) for environ in seen}) == 1

    def test_a_process_without_devices_is_told_so(self, provider: ResourceProvider) -> None:
        assert _environment(provider, ()), "without a variable a process may see all devices"


def _environment(provider: ResourceProvider, devices: tuple[Device, ...]) -> Mapping[str, str]:
    environ = provider.environment(devices)
    assert all(isinstance(word, str) for item in environ.items() for word in item)
    return environ


def _check_devices(provider: ResourceProvider, devices: tuple[Device, ...]) -> None:
    assert all(isinstance(device, Device) for device in devices)
    assert {device.kind for device in devices} <= {provider.kind}
    assert len({device.id for device in devices}) == len(devices)
    assert len({device.index for device in devices}) == len(devices)
