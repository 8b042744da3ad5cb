"""Plugins are loaded one by one; a broken, clashing or too new one is named and harms no other.

The backend is the one that was named, else the one detected, else the default, and what it does not
declare is refused before it is asked; the core's own answers to hooks are given last.
"""

import sys

import click
import pytest

from distributions import Answers, Site
from fiber._base import values
from fiber._config.settings import load_config
from fiber._plugins import fiber_listen_address
from fiber._plugins import manager as plugins_module
from fiber._plugins.backend_choice import choose_backend, load_backend, refuse_undeclared
from fiber._plugins.manager import load_plugins
from fiber._runtime import runtime
from fiber.abc import API_VERSION
from fiber.exceptions import (
    BackendError,
    BackendNotInstalledError,
    BackendUnavailableError,
    CapabilityError,
    PluginClashError,
    PluginError,
    PluginVersionError,
    ResourceError,
    UnknownBackendError,
)
from fiber.hookspecs import hookimpl
from fiber.model import (
    BackendClaim,
    BackendContext,
    BackendInfo,
    Capabilities,
    Interface,
    JobSpec,
    ListenAddress,
    Peers,
    ResourceRequest,
    Volume,
)
from fiber.testing.fakes import FakeBackend, FakeProvider

GOOD = """
@hookimpl
def fiber_backends():
    return [BackendInfo(name="{name}", aliases=("{name}-too",), load=refuse)]
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    before = set(sys.modules)
    made = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(made.folder))
    yield made
    for name in set(sys.modules) - before:
        if name.startswith("plugin_"):
            del sys.modules[name]


def good(name):
    return GOOD.format(name=name)


def add(site, name, source=None, *, offered=None, **fields):
    """Install a distribution with one module: of a good backend, unless a source is given."""
    module = f"plugin_{name}"
    site.add(
        f"fiber-{name}",
        entry_points={offered or name: module},
        modules={module: good(name) if source is None else source},
        **fields,
    )


def load(site):
    return load_plugins(entry_points=site.entry_points())


class Blue(FakeBackend):
    name = "blue"


def info(name, **fields):
    return BackendInfo(name=name, **{"load": Blue, **fields})


def offer(*infos):
    return Answers("fiber_backends", infos)


def providers(*kinds):
    return Answers("fiber_resource_providers", [FakeProvider(kind=kind) for kind in kinds])


def loaded_with(*plugins):
    return load_plugins(entry_points=(), extra=plugins)


def half_a_list():
    yield info("red")
    raise RuntimeError("half way")


class TestLoading:
    def test_a_backend_is_found_by_name_and_alias_in_any_case(self, site):
        add(site, "blue")

        loaded = load(site)

        assert set(loaded.backends()) == {"blue"}
        assert loaded.find_backend("blue") is loaded.find_backend(" Blue-TOO ")
        assert str(loaded.source("blue")) == "fiber-blue 1.0"

    @pytest.mark.parametrize(
        "source, error, told",
        [
            ("import no_such_sdk", ModuleNotFoundError, "no_such_sdk"),
            ("raise SystemExit(3)", SystemExit, "3"),
            ("def syntax error", SyntaxError, ""),
        ],
    )
    def test_one_that_cannot_be_imported_is_recorded_for_its_backend_and_breaks_no_other(
        self, site, caplog, source, error, told
    ):
        add(site, "blue")
        add(site, "red", source, version="2.5")

        loaded = load(site)

        (broken,) = loaded.broken
        assert (broken.name, broken.distribution, broken.version) == ("red", "fiber-red", "2.5")
        assert isinstance(broken.error, error)
        assert set(loaded.backends()) == {"blue"}
        assert "plugin 'red' of fiber-red 2.5 is broken and not used" in caplog.text
        with pytest.raises(
            PluginError, match=rf"'red' cannot be used: .*fiber-red 2\.5.*{told}"
        ) as caught:
            loaded.find_backend("red")
        assert caught.value.__cause__ is broken.error
        assert caught.value.plugin == "fiber-red"
        with pytest.raises(UnknownBackendError):
            loaded.find_backend("green")

    def test_a_known_backend_is_found_broken_by_its_alias_too(self, site):
        add(site, "k8s", "1 / 0")

        with pytest.raises(PluginError, match=r"'kubernetes' cannot be used: .*fiber-k8s 1\.0"):
            load(site).find_backend("kubernetes")

    @pytest.mark.parametrize(
        "source, told",
        [
            (good("red") + "\n@hookimpl\ndef fiber_bakcends(): pass\n", "fiber_bakcends"),
            ("@hookimpl\ndef fiber_backends(nonsense): pass\n", "nonsense"),
        ],
        ids=["hook", "argument"],
    )
    def test_an_unknown_hook_or_argument_makes_its_plugin_a_broken_one(self, site, source, told):
        add(site, "blue")
        add(site, "red", source)

        loaded = load(site)

        (broken,) = loaded.broken
        assert broken.distribution == "fiber-red"
        assert told in str(broken.error)
        assert set(loaded.backends()) == {"blue"}

    @pytest.mark.parametrize(
        "answer, told",
        [
            (["blue"], "must return BackendInfo"),
            ([BackendInfo], "must return BackendInfo"),
            ([None], "must return BackendInfo"),
            # a name is part of variables
            ([info("Big_Blue")], "lower-case"),
            ([info("blue", config=dict)], "attrs class"),
            (half_a_list(), "half way"),
        ],
    )
    def test_a_listing_of_something_else_or_that_raises_breaks_only_its_own_plugin(
        self, answer, told
    ):
        wrong = Answers("fiber_backends", answer)
        loaded = loaded_with(offer(info("blue")), wrong, offer(info("green")))

        assert set(loaded.backends()) == {"blue", "green"}
        (broken,) = loaded.broken
        assert broken.distribution == "Answers"
        assert told in str(broken)


class TestClashes:
    def test_of_two_equal_entry_points_neither_is_loaded_and_both_are_named(self, site):
        for who in ("one", "two"):
            add(site, who, good("blue"), offered="blue")

        loaded = load(site)

        with pytest.raises(PluginClashError, match=r"fiber-one 1\.0 and fiber-two 1\.0"):
            loaded.find_backend("blue")
        assert [broken.distribution for broken in loaded.broken] == ["fiber-one", "fiber-two"]
        assert len(loaded.clashes) == 1

    def test_one_distribution_found_twice_is_no_clash(self, site):
        add(site, "blue")

        loaded = load_plugins(entry_points=[*site.entry_points(), *site.entry_points()])

        assert set(loaded.backends()) == {"blue"}
        assert loaded.broken == ()

    def test_a_backend_name_offered_twice_belongs_to_neither(self, site):
        add(site, "one", good("blue"))
        add(site, "two", good("blue"))
        add(site, "red")

        loaded = load(site)

        assert set(loaded.backends()) == {"red"}
        with pytest.raises(
            PluginClashError, match=r"'blue' is offered by fiber-one 1\.0 and fiber-two 1\.0"
        ) as caught:
            loaded.find_backend("blue")
        assert caught.value.plugin == "fiber-two"

    def test_an_alias_that_is_another_backends_name_is_a_clash_of_that_word_alone(self):
        loaded = loaded_with(offer(info("blue")), offer(info("red", aliases=("blue",))))

        with pytest.raises(PluginClashError, match="'blue'"):
            loaded.find_backend("blue")
        assert loaded.find_backend("red").name == "red"

    def test_a_resource_kind_offered_twice_belongs_to_neither_but_the_core_keeps_its_own(self):
        loaded = loaded_with(providers("tpu", "fpga"), providers("tpu", "gpu"))

        assert set(loaded.providers()) == {"gpu", "fpga"}
        with pytest.raises(
            PluginClashError, match=r"the resource kind 'tpu' is offered by Answers and Answers"
        ):
            loaded.find_provider("tpu")
        assert type(loaded.find_provider("gpu")).__module__ == "fiber._agent.resources.nvidia"
        assert any("'gpu' is offered by fiber-core" in str(clash) for clash in loaded.clashes)

    def test_a_command_without_a_name_breaks_its_plugin(self):
        loaded = loaded_with(Answers("fiber_commands", [click.Command(None)]))

        assert loaded.commands() == {}
        assert "have a name" in str(loaded.broken[0])


class TestNames:
    def test_an_unknown_name_lists_the_known_ones_and_the_nearest(self):
        loaded = loaded_with(offer(info("blue")))

        with pytest.raises(UnknownBackendError) as caught:
            loaded.find_backend("bleu", origin="environment FIBER_BACKEND")

        text = str(caught.value)
        assert text.startswith(
            "unknown backend 'bleu' (environment FIBER_BACKEND): installed are blue;"
        )
        assert text.endswith("did you mean 'blue'?")
        with pytest.raises(UnknownBackendError, match="installed are none") as caught:
            loaded_with().find_backend("zzzzzzzzz")
        assert "did you mean" not in str(caught.value)

    @pytest.mark.parametrize("name", ["k8s", "kubernetes"])
    def test_the_error_for_a_published_name_has_the_distribution_to_install(self, name):
        with pytest.raises(
            BackendNotInstalledError, match=r"not installed: pip install fiber-k8s$"
        ):
            loaded_with().find_backend(name)

    def test_an_unknown_kind_of_device_lists_the_installed_ones(self):
        with pytest.raises(ResourceError, match=r"'quantum' is installed; installed are gpu$"):
            loaded_with().find_provider("quantum")

    def test_kinds_of_devices_are_listed_for_hints(self):
        assert "gpu" in plugins_module.resource_kinds()


class TestVersions:
    @pytest.mark.parametrize(
        "api, upgrade",
        [
            ((API_VERSION[0] + 1, 0), "upgrade fiber-core"),
            ((API_VERSION[0], API_VERSION[1] + 1), "upgrade fiber-core"),
            ((API_VERSION[0] - 1, 0), "upgrade Answers"),
        ],
    )
    def test_a_backend_for_another_api_is_refused_by_name_and_others_work(self, api, upgrade):
        earlier = (API_VERSION[0], 0)
        loaded = loaded_with(offer(info("red", api=api)), offer(info("blue", api=earlier)))

        assert set(loaded.backends()) == {"blue"}
        with pytest.raises(PluginVersionError, match=f"'red' of Answers .*{upgrade}"):
            loaded.find_backend("red")
        assert set(loaded.incompatible_backends()) == {"red"}


class Claims:
    """A plugin that claims processes whose environment has ``HERE``."""

    def __init__(self, claim):
        self.claim = claim

    @hookimpl
    def fiber_detect_backend(self, environ):
        return self.claim if environ.get("HERE") else None


def plugins(*infos, claims=()):
    return loaded_with(offer(*infos), *map(Claims, claims))


@pytest.fixture
def choose(tmp_path):
    def choose(loaded, environ=None, **arguments):
        environ = environ or {}
        config = load_config(arguments, environ, tmp_path)
        return choose_backend(loaded, config, environ).name

    return choose


class TestChoice:
    @pytest.mark.parametrize(
        "environ, arguments, chosen",
        [
            ({"FIBER_BACKEND": "red"}, {"backend": "blue"}, "blue"),
            ({"FIBER_BACKEND": "blue", "HERE": "1"}, {}, "blue"),
            ({"HERE": "1"}, {}, "red"),
            ({}, {}, "blue"),
        ],
        ids=["argument", "environment", "detected", "default"],
    )
    def test_named_is_over_detected_and_that_over_the_default(
        self, choose, environ, arguments, chosen
    ):
        claims = [BackendClaim("red", "a red file")]
        loaded = plugins(info("blue", default=True), info("red"), claims=claims)

        assert choose(loaded, environ, **arguments) == chosen

    def test_two_claims_are_an_error_that_quotes_both(self, choose):
        claims = [BackendClaim("red", "a red file"), BackendClaim("blue", "a blue file")]
        loaded = plugins(info("blue"), info("red"), claims=claims)

        with pytest.raises(BackendError, match=r"'blue' \(a blue file\) and 'red' \(a red file\)"):
            choose(loaded, {"HERE": "1"})
        assert choose(loaded, {"HERE": "1"}, backend="red") == "red"

    def test_two_claims_for_one_backend_agree(self, choose):
        claims = [BackendClaim("red", "a red file"), BackendClaim("red", "a red socket")]

        assert choose(plugins(info("red"), claims=claims), {"HERE": "1"}) == "red"

    @pytest.mark.parametrize("claim", [BackendClaim("green", "?"), "blue"])
    def test_a_claim_that_makes_no_sense_breaks_only_its_plugin(self, choose, claim):
        loaded = plugins(info("blue", default=True), claims=[claim])

        assert choose(loaded, {"HERE": "1"}) == "blue"
        assert [broken.distribution for broken in loaded.broken] == ["Claims"]

    def test_two_defaults_are_an_error_that_names_both(self, choose):
        loaded = plugins(info("blue", default=True), info("red", default=True))

        with pytest.raises(BackendError, match=r"'blue' of Answers and 'red' of Answers; choose"):
            choose(loaded)

    def test_without_a_default_the_error_lists_installed_and_broken_ones(self, choose):
        loaded = plugins(info("blue"), info("red", api=(99, 0)), info("Bad Name"))
        with pytest.raises(BackendError, match=r"none of those installed \(none\).*'Bad Name'"):
            choose(loaded)

        loaded = plugins(info("blue"), info("red", api=(99, 0)))
        with pytest.raises(BackendError, match=r"\(blue\) is the default; .*'red'.*99\.0"):
            choose(loaded)


class TestMaking:
    def test_a_backend_gets_its_context(self):
        context = BackendContext(run_id="0123abcd")

        assert load_backend(plugins(info("blue")), "blue", context)._context is context

    def test_a_backend_may_be_named_by_the_text_of_its_class(self):
        by_text = info("fake", load="fiber.testing.fakes:FakeBackend")

        assert isinstance(load_backend(plugins(by_text), "fake", BackendContext()), FakeBackend)
        with pytest.raises(PluginError, match=r"ModuleNotFoundError.*pip install"):
            load_backend(plugins(info("fake", load="none_such:A")), "fake", BackendContext())

    @pytest.mark.parametrize(
        "raised, error, text",
        [
            (ImportError("no_such_sdk"), PluginError, r"of Answers .*no_such_sdk.*pip install"),
            (ZeroDivisionError("oops"), PluginError, r"of Answers .*ZeroDivisionError: oops$"),
            # one of Fiber's own passes unchanged
            (BackendUnavailableError("no answer"), BackendUnavailableError, "^no answer$"),
        ],
    )
    def test_an_error_of_a_plugin_names_it_and_the_fix_where_it_is_known(self, raised, error, text):
        def load(context):
            raise raised

        with pytest.raises(error, match=text) as caught:
            load_backend(plugins(info("blue", load=load)), "blue", BackendContext())
        assert raised in (caught.value, caught.value.__cause__)

    @pytest.mark.parametrize("name, load", [("red", Blue), ("blue", lambda _: None)])
    def test_what_is_made_must_be_a_backend_of_that_name(self, name, load):
        with pytest.raises(PluginError, match="in place of a backend of that name"):
            load_backend(plugins(info(name, load=load)), name, BackendContext())


HERE = "unix" if sys.platform == "linux" else "ipc"
LOOPBACK = Interface(name="lo", address="127.0.0.1", is_loopback=True)
LOOPBACK6 = Interface(name="lo", address="::1", is_loopback=True)
FIRST = Interface(name="a", address="10.0.0.7")
SECOND = Interface(name="b", address="192.168.1.7")
SIX = Interface(name="a", address="2001:db8::7")
ZONE = Interface(name="a", address="fe80::7%a")
ZONE4 = Interface(name="c", address="169.254.3.4")
DOWN = Interface(name="d", address="10.9.9.9", is_up=False)


def peers(same_host):
    return Peers(same_host=same_host, directory="/run/fiber/0123abcd", name="m")


def test_peers_of_the_same_host_meet_at_a_socket_file():
    answer = fiber_listen_address(peers=peers(True), interfaces=[FIRST])

    assert answer == ListenAddress(bind_url=f"{HERE}:///run/fiber/0123abcd/m.sock")


@pytest.mark.parametrize(
    "interfaces, host",
    [
        ([LOOPBACK, FIRST, SECOND], "10.0.0.7"),
        ([LOOPBACK, SECOND, FIRST], "192.168.1.7"),
        ([LOOPBACK, SIX, ZONE4, FIRST], "10.0.0.7"),
        ([LOOPBACK6, ZONE, SIX], "[2001:db8::7]"),
        ([ZONE4, ZONE, LOOPBACK], "169.254.3.4"),
        ([DOWN, LOOPBACK], "127.0.0.1"),
        ([DOWN], "127.0.0.1"),
        ([], "127.0.0.1"),
    ],
)
def test_other_hosts_dial_the_interface_that_reaches_farthest(interfaces, host):
    answer = fiber_listen_address(peers=peers(False), interfaces=interfaces)

    assert answer == ListenAddress(bind_url=f"tls+tcp://{host}:0")


PLAIN = JobSpec(run_id="0badcafe", name="a", argv=("true",))
NEEDS = {
    "images": ({"image": "python:3"}, "image 'python:3'"),
    "volumes": ({"volumes": (Volume(source="nfs", path="/x"),)}, "volume 'nfs'"),
    "devices": (
        {"resources": ResourceRequest(devices={"gpu": 1, "fpga": 2})},
        r"a job with devices \(fpga, gpu\)",
    ),
    "fork": ({"processes": 2}, "a job of 2 processes"),
    "detached": ({"detached": True}, "'a', a job that goes on by itself,"),
}


@pytest.mark.parametrize("capability", NEEDS)
def test_a_job_is_refused_for_what_is_not_declared_and_for_that_alone(capability):
    changes, words = NEEDS[capability]
    spec = values.evolve(PLAIN, **changes)
    with pytest.raises(CapabilityError, match=f"^{words} is not supported by here") as caught:
        refuse_undeclared("here", Capabilities(), spec)
    assert caught.value.capability == capability
    refuse_undeclared("here", Capabilities(**{capability: True}), spec)


def test_cpus_and_memory_are_wishes_where_they_are_no_limits():
    spec = values.evolve(PLAIN, resources=ResourceRequest(cpu=2, memory=100))
    refuse_undeclared("here", Capabilities(), spec)


def test_a_program_is_told_before_its_platform_is_asked(monkeypatch):
    monkeypatch.setattr(runtime, "_current", None)
    monkeypatch.setenv("FIBER_BACKEND", "local")
    current = runtime.current()
    try:
        with pytest.raises(CapabilityError, match="image 'x' is not supported by local"):
            current.submit(values.evolve(PLAIN, image="x"))
        assert current._backend is None
    finally:
        current.close()
