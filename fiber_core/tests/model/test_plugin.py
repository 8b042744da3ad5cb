"""What a plugin says of its backend, with the settings that are in force."""

import attrs
import pytest

from fiber._plugins import manager
from fiber._plugins.backend_choice import load_settings
from fiber.cli.session import Session
from fiber.exceptions import ConfigError, PluginError
from fiber.hookspecs import hookimpl
from fiber.model import BackendInfo, Capabilities


@attrs.frozen
class SiteConfig:
    enforces_cpu: bool = attrs.field(default=False, metadata={"help": "as the site has it"})


def by_site(settings):
    return Capabilities(logs=True, cpu_limit=settings.enforces_cpu)


def info(capabilities_for=by_site):
    return BackendInfo(
        name="site",
        load=lambda _: None,
        config=SiteConfig,
        capabilities=Capabilities(logs=True),
        capabilities_for=capabilities_for,
    )


class Plugin:
    @hookimpl
    def fiber_backends(self):
        return [info()]


@pytest.mark.parametrize("enforces", [False, True])
def test_capabilities_that_depend_on_the_site_follow_its_settings(monkeypatch, enforces):
    plugins = manager.load_plugins(extra=[Plugin()])
    monkeypatch.setattr(manager, "load_plugins", lambda: plugins)
    monkeypatch.setenv("FIBER_SITE_ENFORCES_CPU", str(enforces).lower())

    _, _, of_program = load_settings({"backend": "site"})
    of_command = Session.load("site", plugins=plugins).info

    expected = Capabilities(logs=True, cpu_limit=enforces)
    assert of_program.capabilities == of_command.capabilities == expected
    assert plugins.find_backend("site").capabilities == Capabilities(logs=True)


def test_those_that_do_not_are_what_they_are():
    described = info(capabilities_for=None)
    assert described.with_settings(SiteConfig()) is described


def test_a_function_of_a_plugin_that_fails_is_named_and_a_setting_that_it_refuses_is_told():
    with pytest.raises(PluginError, match="'site' raised AttributeError"):
        info().with_settings(None)
    with pytest.raises(PluginError, match="returned 3, no Capabilities"):
        info(lambda _: 3).with_settings(SiteConfig())

    def refuse(_):
        raise ConfigError("no such site")

    with pytest.raises(ConfigError, match="no such site"):
        info(refuse).with_settings(SiteConfig())
