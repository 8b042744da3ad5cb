"""A written key belongs to the core or a backend; an unknown one is an error or a warning."""

import logging

import attrs
import pytest

from fiber._config.convert import SettingsCollector, key_prefix
from fiber._config.sources import FileSettings, Origin, OriginKind, RawValue
from fiber.exceptions import ConfigError
from fiber.model import BackendInfo


@attrs.frozen
class Settings:
    speed: int = 1
    namespace: str = ""


def info(name, **fields):
    return BackendInfo(name=name, load=lambda _: None, config=Settings, **fields)


BLUE, RED, PALE = info("blue", aliases=("azure",)), info("red"), info("blue-pale")
CORE = ("cpu", "image", "log_level")


@pytest.fixture
def collector():
    return SettingsCollector(CORE, [BLUE, RED, PALE], BLUE)


def file(**sections):
    origin = Origin(OriginKind.FILE, "f:1")
    return FileSettings(
        path="f",
        sections={
            n: {k: RawValue(v, origin) for k, v in keys.items()} for n, keys in sections.items()
        },
        origins=dict.fromkeys(sections, origin),
    )


def found(collector, owner):
    return {key: raw.value for key, raw in collector.by_owner[owner].items()}


class TestOwners:
    def test_keys_go_to_the_core_and_to_backends_by_prefix_of_which_the_longer_counts(
        self, collector
    ):
        collector.add_arguments({"cpu": 1, "blue_speed": 2, "red_speed": 3, "blue_pale_speed": 4})

        assert found(collector, "") == {"cpu": 1}
        assert found(collector, "blue") == {"speed": 2}
        assert found(collector, "red") == {"speed": 3}
        assert found(collector, "blue-pale") == {"speed": 4}
        assert key_prefix("blue-pale") == "blue_pale_"

    def test_a_section_is_a_backend(self, collector):
        collector.add_file(file(default={"cpu": "1", "red_speed": "2"}, blue={"speed": "3"}))

        assert found(collector, "red") == {"speed": "2"}
        assert found(collector, "blue") == {"speed": "3"}

    def test_what_is_added_later_wins(self, collector):
        collector.add_file(file(default={"cpu": "1"}, blue={"speed": "1"}))
        collector.add_environ({"FIBER_CPU": "2", "FIBER_BLUE_SPEED": "2"})
        collector.add_arguments({"cpu": 3})

        assert found(collector, "") == {"cpu": 3}
        assert found(collector, "blue") == {"speed": "2"}

    def test_none_is_not_set(self, collector):
        collector.add_arguments({"cpu": None, "imgae": None})

        assert found(collector, "") == {}


class TestUnknown:
    @pytest.mark.parametrize(
        "section, key, told",
        [
            ("default", "imgae", r"did you mean 'image'\? allowed .*blue_namespace"),
            # of backends in use or not
            ("blue", "sped", r"did you mean 'blue_speed'\? allowed are blue_speed, blue_nam"),
            ("red", "sped", r"did you mean 'red_speed'\? allowed are red_speed, red_nam"),
        ],
    )
    def test_an_unknown_key_is_an_error_with_its_place_and_the_nearest(
        self, collector, section, key, told
    ):
        name = key if section == "default" else f"{section}_{key}"
        with pytest.raises(ConfigError, match=rf"'{name}' \(f:1\): {told}"):
            collector.add_file(file(**{section: {key: "x"}}))
        argument = rf"'{name}' \(argument {name} to fiber.init\): {told}"
        with pytest.raises(ConfigError, match=argument):
            collector.add_arguments({name: "x"})

    def test_the_error_says_that_a_backend_has_no_settings(self):
        bare = BackendInfo(name="bare", load=lambda _: None)

        with pytest.raises(ConfigError, match="this backend has no settings"):
            SettingsCollector(CORE, [], bare).add_arguments({"bare_speed": 1})

    @pytest.mark.parametrize(
        "section, told",
        [
            ("bleu", r"unknown section \[bleu\] \(f:1\); did you mean \[blue\]"),
            # aliases
            ("azure", r"\[azure\] .*did you mean \[blue\]"),
            ("kubernetes", r"\[kubernetes\] .*did you mean \[k8s\]"),
        ],
    )
    def test_an_unknown_section_is_an_error_with_the_nearest(self, collector, section, told):
        with pytest.raises(ConfigError, match=told):
            collector.add_file(file(**{section: {"speed": "1"}}))

    def test_keys_of_a_known_backend_that_is_not_installed_are_left_alone(self, collector):
        collector.add_file(file(default={"docker_network": "x"}, k8s={"namespace": "x"}))
        collector.add_arguments({"ssh_hosts": ["a"]})

        assert set(collector.by_owner) == {"", "blue", "red", "blue-pale"}
        assert not any(collector.by_owner.values())

    def test_until_the_backend_is_chosen_only_the_cores_keys_are_looked_at(self, caplog):
        early = SettingsCollector(CORE, [], None)
        early.add_file(file(default={"imgae": "x", "cpu": "1"}, bleu={"speed": "x"}))
        early.add_environ({"FIBER_IMGAE": "x"})
        early.add_arguments({"imgae": "x", "image": "y"})

        assert found(early, "") == {"cpu": "1", "image": "y"}
        assert caplog.text == ""


class TestEnvironment:
    def warnings(self, collector, caplog, **environ):
        with caplog.at_level(logging.WARNING, "fiber.config"):
            collector.add_environ(environ)
        return caplog.messages

    @pytest.mark.parametrize(
        "name, told",
        [
            ("FIBER_IMAEG", "FIBER_IMAEG is no setting of fiber, ignored (nearest: FIBER_IMAGE)"),
            ("FIBER_BLUE_SPED", "nearest: FIBER_BLUE_SPEED"),
            # of a service named fiber
            ("FIBER_PORT", "FIBER_PORT is no setting of fiber"),
            ("FIBER_SERVICE_HOST", "FIBER_SERVICE_HOST is no setting of fiber"),
        ],
    )
    def test_an_unknown_variable_is_a_warning_with_the_nearest_name(
        self, collector, caplog, name, told
    ):
        (text,) = self.warnings(collector, caplog, **{name: "x"})

        assert told in text
        assert found(collector, "") == {}

    @pytest.mark.parametrize("name", ["FIBER_RED_SPEED", "FIBER_RED_SPED", "FIBER_K8S_NAMESPACE"])
    def test_variables_of_other_backends_are_left_alone(self, collector, caplog, name):
        assert self.warnings(collector, caplog, **{name: "x"}) == []
        assert found(collector, "red") == {}

    def test_fibers_own_variables_are_no_settings(self, collector, caplog):
        assert self.warnings(collector, caplog, FIBER_BOOTSTRAP="fd:3", FIBER_REQUIRE="blue") == []

    def test_other_variables_and_empty_ones_are_not_looked_at(self, collector, caplog):
        assert (
            self.warnings(collector, caplog, HOME="/x", FIBERS="y", FIBER_CPU="", FIBER_XX="") == []
        )
        assert found(collector, "") == {}
