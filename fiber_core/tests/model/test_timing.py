from __future__ import annotations

import pytest

from fiber._base import values
from fiber._config.settings import load_config
from fiber.model.timing import Durations, Timing


@values.frozen(kw_only=True)
class Platform(Durations):
    answer: float = 30.0
    backoff: tuple[float, ...] = (1.0, 2.0)


def test_a_scale_multiplies_every_duration_and_is_remembered():
    assert Platform.at(0.1) == Platform(scale=0.1, answer=3.0, backoff=(0.1, 0.2))


def test_at_scale_one_durations_are_their_defaults():
    assert Timing.at(1.0) == Timing()


def test_the_setting_time_scale_is_the_scale_of_a_run(monkeypatch):
    monkeypatch.setenv("FIBER_TIME_SCALE", "0.5")
    assert load_config({}).timing == Timing.at(0.5)


@pytest.mark.parametrize("value", ["0", "-1", "soon"])
def test_a_scale_must_be_a_positive_number(monkeypatch, value):
    monkeypatch.setenv("FIBER_TIME_SCALE", value)
    with pytest.raises(ValueError, match=r"time_scale|FIBER_TIME_SCALE"):
        load_config({})
