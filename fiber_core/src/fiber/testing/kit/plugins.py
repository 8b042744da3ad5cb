"""Conformance kits for plugins and for resource providers."""

# ruff: noqa: D102  a test's name is its sentence

from __future__ import annotations

import importlib
import importlib.metadata
import json
import pickle
import pkgutil
import re
import subprocess
import sys
import typing
from collections.abc import Mapping
from types import MappingProxyType, ModuleType

import attrs
import pytest

from fiber._agent.resources import probe
from fiber._config.convert import build, convert, settings_of
from fiber._plugins.manager import Plugins, Source, load_plugins
from fiber.abc import API_VERSION, ResourceProvider
from fiber.exceptions import ResourceError
from fiber.hookspecs import PROJECT
from fiber.model import BackendClaim, Capabilities, Device
from fiber.testing.kit.platform import Facts, Kit

_LISTING = """
import importlib, json, sys
plugin = importlib.import_module(sys.argv[1])
for hook in "fiber_backends", "fiber_resource_providers", "fiber_commands":
    if hasattr(plugin, hook):
        list(getattr(plugin, hook)())
print(json.dumps(sorted(sys.modules)))
"""


class PluginConformance(Kit):
    """Tests that a plugin's hooks, backends and settings are valid.

    Subclass it and name the module with the hook implementations::

        class TestMyPlugin(PluginConformance):
            module = "fiber_mine.plugin"
            sdks = ("mine_sdk",)
    """

    kit_name = "plugin"

    #: the module that the entry point names
    module: str = ""
    #: top-level modules of the SDK, which listing must not import
    sdks: tuple[str, ...] = ()

    @pytest.fixture
    def plugin(self) -> ModuleType:
        """The plugin's module."""
        assert self.module, "name the plugin's module in the attribute 'module'"
        return importlib.import_module(self.module)

    @pytest.fixture(autouse=True)
    def _subject(self, facts: Facts) -> None:
        facts["name"] = self.module

    @pytest.fixture
    def loaded(self, plugin: ModuleType) -> Plugins:
        """Plugin manager with this plugin and the core's own only."""
        return load_plugins(entry_points=(), extra=[plugin])

    def test_its_hooks_are_those_that_fiber_calls(self, loaded: Plugins) -> None:
        assert [str(broken) for broken in loaded.broken] == []
        assert [str(clash) for clash in loaded.clashes] == []

    def test_it_offers_something(self, loaded: Plugins) -> None:
        *_, mine = loaded.distributions()

        assert mine.hooks

    def test_an_entry_point_of_its_distribution_names_it(self, plugin: ModuleType) -> None:
        points = importlib.metadata.entry_points(group=PROJECT)
        mine = [point for point in points if point.value.partition(":")[0] == self.module]

        assert mine, f"no installed distribution has an entry point for {self.module!r}"
        assert len({(point.name, Source.of(point).distribution) for point in mine}) == 1

    def test_the_entry_point_of_a_backend_has_its_name(self, loaded: Plugins) -> None:
        names = {info.name for info in loaded.backends().values()}
        if not names:
            pytest.skip("it offers no backend")
        points = importlib.metadata.entry_points(group=PROJECT)

        mine = {point.name for point in points if point.value.partition(":")[0] == self.module}
        assert mine <= names

    def test_listing_imports_no_sdk(self) -> None:
        if not self.sdks:
            pytest.skip("the subclass names no SDK in 'sdks'")
        answer = subprocess.run(
            [sys.executable, "-c", _LISTING, self.module],
            check=True,
            capture_output=True,
            text=True,
        )

        imported = {name.partition(".")[0] for name in json.loads(answer.stdout)}
        assert imported & set(self.sdks) == set()

    def test_its_backends_are_for_this_api(self, loaded: Plugins) -> None:
        assert {name: str(error) for name, error in loaded.incompatible_backends().items()} == {}
        for info in loaded.backends().values():
            assert info.api[0] == API_VERSION[0]

    def test_its_backends_say_what_they_are(self, loaded: Plugins) -> None:
        for info in loaded.backends().values():
            assert info.summary, f"backend {info.name!r} needs a summary"
            assert "\n" not in info.summary
            assert isinstance(info.capabilities, Capabilities)

    def test_what_it_names_can_be_made(self, loaded: Plugins) -> None:
        for info in loaded.backends().values():
            for field in "load", "witness":
                where = getattr(info, field)
                if isinstance(where, str):
                    assert ":" in where, (
                        f"{field} of {info.name!r}: write 'module:name', not {where!r}"
                    )
                    where = pkgutil.resolve_name(where)
                assert where is None or callable(where), f"{where} cannot be called"

    def test_capabilities_that_need_others_have_them(self, loaded: Plugins) -> None:
        for info in loaded.backends().values():
            assert info.capabilities.logs or not info.capabilities.follow_logs

    def test_its_settings_can_be_read_from_text(self, loaded: Plugins) -> None:
        for info in loaded.backends().values():
            if info.config is None:
                continue
            fields = settings_of(info.config)
            required = [key for key, field in fields.items() if field.default is attrs.NOTHING]
            assert required == [], f"settings of {info.name!r} need defaults: {required}"
            # an unsupported type is an error of build(), whatever the text
            _check_types(info.config)
            assert build(info.config, {}) == {}
            info.config()

    def test_detection_is_quiet_or_names_a_backend_of_its_own(
        self, loaded: Plugins, plugin: ModuleType
    ) -> None:
        answers = list(loaded.call_each("fiber_detect_backend", environ={}))

        assert [str(broken) for broken in loaded.broken] == []
        for _, claim in answers:
            assert isinstance(claim, BackendClaim)
            assert claim.name in loaded.backends()
            assert claim.evidence


def _check_types(config: type) -> None:
    hints = typing.get_type_hints(config)
    for key, field in settings_of(config).items():
        if field.metadata.get("parse"):
            continue
        try:
            convert(object(), hints[field.name])
        except TypeError as error:
            msg = f"setting {key!r}: {error}"
            raise AssertionError(msg) from error
        except ValueError:
            # the type is supported, and object() is rightly rejected
            continue


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
