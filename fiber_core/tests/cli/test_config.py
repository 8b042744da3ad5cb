"""Settings are shown with their origins; a mistake is one line."""

import json
from pathlib import Path

import attrs
import pytest

from fiber.hookspecs import hookimpl
from fiber.model import BackendClaim, BackendInfo


@attrs.frozen(kw_only=True)
class Settings:
    """Settings of a backend."""

    token: str = attrs.field(default="", metadata={"secret": True})


class Detected:
    """A backend that claims this process."""

    @hookimpl
    def fiber_backends(self):
        return [BackendInfo(name="here", config=Settings, load=lambda _: None)]

    @hookimpl
    def fiber_detect_backend(self):
        return BackendClaim("here", "a test")


def shown(fiber, *words):
    header, *lines = fiber.lines("config", *words)
    assert header == "KEY\tVALUE\tORIGIN"
    return {line.split("\t")[0]: tuple(line.split("\t")[1:]) for line in lines}


def test_each_value_has_its_origin(fiber, monkeypatch):
    Path(".fiberconfig").write_text("memory = 4Gi\ncpu = 2\n")
    monkeypatch.setenv("FIBER_CPU", "500m")

    settings = shown(fiber)

    assert settings["backend"] == ("fake", "default")
    assert settings["cpu"] == ("0.5", "environment FIBER_CPU")
    assert settings["memory"] == ("4096", f"{Path.cwd()}/.fiberconfig:1")
    assert settings["image"] == ("", "default")


def test_a_detected_backend_is_shown_as_such(fiber):
    fiber.extra.append(Detected())

    assert shown(fiber)["backend"] == ("here", "detected")


def test_settings_of_the_backend_are_shown_and_secrets_are_not(fiber, monkeypatch):
    fiber.extra.append(Detected())
    monkeypatch.setenv("FIBER_HERE_TOKEN", "s3cret")

    settings = shown(fiber, "--backend", "here")

    assert settings["here_token"] == ("********", "environment FIBER_HERE_TOKEN")
    assert settings["backend"] == ("here", "option --backend")


def test_json_has_values_of_their_types(fiber, monkeypatch):
    monkeypatch.setenv("FIBER_ENV", "A,B")

    data = {s["key"]: s for s in json.loads(fiber("config", "--json").stdout)}

    assert data["env"]["value"] == ["A", "B"]
    assert data["debug"] == {
        "key": "debug",
        "value": False,
        "origin": "default",
        "help": "log everything",
    }


@pytest.mark.parametrize("words", [("config",), ("ps",), ("run", "true")])
def test_a_mistake_is_one_line_and_exit_code_2(fiber, words):
    Path(".fiberconfig").write_text("memroy = 4Gi\n")

    told = fiber.fails(*words, code=2)

    assert told.startswith("fiber: ")
    assert "memroy" in told
    assert f"{Path.cwd()}/.fiberconfig:1" in told
    assert len(told.splitlines()) == 1
