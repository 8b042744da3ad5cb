"""The backend is the one that was named, else the one detected, else the default."""

import pytest

from fiber._config.settings import load_config
from fiber._plugins.backend_choice import choose_backend, load_backend
from fiber._plugins.manager import load_plugins
from fiber.abc import Backend
from fiber.exceptions import (
    BackendError,
    BackendUnavailableError,
    PluginError,
    UnknownBackendError,
)
from fiber.hookspecs import hookimpl
from fiber.model import BackendClaim, BackendContext, BackendInfo


class Blue(Backend):
    name = "blue"

    def __init__(self, context=None):
        self.context = context

    def submit(self, spec): ...
    def events(self, run_id): ...
    def status(self, jobs): ...
    def terminate(self, job, *, grace=5.0): ...
    def kill(self, job): ...
    def list(self, run_id=None): ...
    def cleanup(self, run_id): ...
    def capacity(self): ...
    def reach(self, job): ...
    def check(self): ...
    def close(self): ...


def plugins(*infos, claims=()):
    class Offers:
        @hookimpl
        def fiber_backends(self):
            return infos

    made = [Offers()]
    for claim in claims:

        class Claims:
            @hookimpl
            def fiber_detect_backend(self, environ, claim=claim):
                return claim if environ.get("HERE") else None

        made.append(Claims())
    return load_plugins(entry_points=(), extra=made)


def info(name, **fields):
    return BackendInfo(name=name, load=fields.pop("load", Blue), **fields)


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

        with pytest.raises(BackendError, match=r"'blue' of Offers and 'red' of Offers; choose"):
            choose(loaded)

    def test_without_a_default_the_error_lists_installed_and_broken_ones(self, choose):
        loaded = plugins(info("blue"), info("red", api=(99, 0)), info("Bad Name"))
        with pytest.raises(BackendError, match=r"none of those installed \(none\).*'Bad Name'"):
            choose(loaded)

        loaded = plugins(info("blue"), info("red", api=(99, 0)))
        with pytest.raises(BackendError, match=r"\(blue\) is the default; .*'red'.*99\.0"):
            choose(loaded)

    def test_the_error_for_an_unknown_name_has_its_origin(self, choose):
        with pytest.raises(UnknownBackendError, match=r"'x' \(environment FIBER_BACKEND\)"):
            choose(plugins(info("blue")), {"FIBER_BACKEND": "x"})


class TestLoading:
    def test_a_backend_gets_its_context(self):
        context = BackendContext(run_id="0123abcd")

        assert load_backend(plugins(info("blue")), "blue", context).context is context

    @pytest.mark.parametrize(
        "raised, error, text",
        [
            (ImportError("no_such_sdk"), PluginError, r"of Offers .*no_such_sdk.*pip install"),
            (ZeroDivisionError("oops"), PluginError, r"of Offers .*ZeroDivisionError: oops$"),
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
