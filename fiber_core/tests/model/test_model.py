"""Amounts of memory as users write them, and durations that are scaled together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._base import values
from fiber._config.settings import load_config
from fiber.model.job import megabytes
from fiber.model.timing import Durations, Timing


@pytest.mark.parametrize(
    "value,expected",
    [
        (4096, 4096),
        ("4Gi", 4096),
        ("1.5Gi", 1536),
        (".5Gi", 512),
        (" 2Gi ", 2048),
        ("1Ti", 1024 * 1024),
        ("1G", 954),
        ("1M", 1),
        ("1e9", 954),
        ("12E+8", 1145),
        ("1Ki", 1),
        ("1Ei", 2**40),
        ("1E", 953674316407),
    ],
)
def test_an_amount_is_read_in_mebibytes_rounded_up(value, expected):
    assert megabytes(value) == expected


@given(st.integers(1, 2**30))
def test_a_number_and_the_same_number_of_mebibytes_agree(number):
    assert megabytes(number) == megabytes(f"{number}Mi") == number


@pytest.mark.parametrize(
    "amounts,error,text",
    [
        ([0, -1, "0Gi", "0e5"], ValueError, "memory must be positive"),
        ([1.5, True, None, b"4Gi", ["4Gi"]], TypeError, "memory must be MB as a whole number"),
        (
            ["", "Gi", "four", "-4Gi", "4GiB", "4gi", "4GB", "4 Gi", "1ee9"],
            ValueError,
            r"memory '.*' is no quantity: allowed .* Gi",
        ),
        # Kubernetes would read bytes, and Docker megabytes
        (["4096"], ValueError, "'4096' has no unit: write the number 4096 itself"),
        (["512m"], ValueError, "counts thousandths of a byte: write '512Mi'"),
    ],
    ids=["not positive", "another type", "no quantity", "no unit", "thousandths"],
)
def test_what_is_no_amount_is_refused_with_what_is_allowed(amounts, error, text):
    for value in amounts:
        with pytest.raises(error, match=text):
            megabytes(value)


@values.frozen(kw_only=True)
class Platform(Durations):
    answer: float = 30.0
    backoff: tuple[float, ...] = (1.0, 2.0)


def test_durations_are_shown_by_their_scale_and_what_differs_from_it():
    assert repr(Timing()) == "Timing()"
    assert repr(values.evolve(Timing.at(0.1), dial=9.0)) == "Timing(scale=0.1, dial=9.0)"


def test_a_scale_multiplies_every_duration_and_is_the_setting_of_a_run(monkeypatch):
    assert Platform.at(0.1) == Platform(scale=0.1, answer=3.0, backoff=(0.1, 0.2))
    assert Timing.at(1.0) == Timing()
    monkeypatch.setenv("FIBER_TIME_SCALE", "0.5")
    assert load_config({}).timing == Timing.at(0.5)


@pytest.mark.parametrize("value", ["0", "-1", "soon"])
def test_a_scale_must_be_a_positive_number(monkeypatch, value):
    monkeypatch.setenv("FIBER_TIME_SCALE", value)
    with pytest.raises(ValueError, match=r"time_scale|FIBER_TIME_SCALE"):
        load_config({})
