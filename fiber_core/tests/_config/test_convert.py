"""Text and Python values become the types that a settings class names, or an error that says why."""

import enum
import math
from pathlib import Path
from typing import Any, Literal, Optional

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._config.convert import build, convert, parse_cpu, parse_memory, render, settings_of
from fiber._config.sources import Origin, OriginKind, RawValue
from fiber.exceptions import ConfigError


class Colour(enum.Enum):
    RED = "red"
    DARK_BLUE = "dark-blue"


class TestConvert:
    @pytest.mark.parametrize(
        "hint, values, wanted",
        [
            (bool, ["true", "True", "1", "YES", " on ", True, 1], True),
            (bool, ["false", "FALSE", "0", "no", "off", False, 0], False),
            (int, ["7", " 7 ", 7, 7.0], 7),
            (int, [" -7 "], -7),
            (float, ["0.5", 0.5], 0.5),
            (float, ["1e3", 1000], 1000.0),
            (list[str], ["a,b", "a, b,", "a\nb", ["a", "b"], ("a", "b")], ["a", "b"]),
            (tuple[str, ...], ["a,b", ["a", "b"], ("a", "b")], ("a", "b")),
            (frozenset[str], ["a,b", ["a", "b"], ("a", "b")], frozenset("ab")),
            (list[int], ["1,2"], [1, 2]),
            (list[int], [""], []),
            (Literal["debug", "warning"], ["WARNING"], "warning"),
            (Literal[1, 2], ["2"], 2),
            (Colour, ["Dark-Blue", Colour.DARK_BLUE], Colour.DARK_BLUE),
            (int | None, ["none"], None),
            (Optional[int], ["", None], None),  # noqa: UP045  the older spelling too
            (Optional[int], ["3"], 3),  # noqa: UP045
            (list[str] | None, [None], None),
            (Any, [{"a": 1}], {"a": 1}),
            (str, ["a b"], "a b"),
            (Path, ["/x/y", Path("/x/y")], Path("/x/y")),
            (Path, ["~/x"], Path.home() / "x"),
        ],
    )
    def test_values_become_what_is_named(self, hint, values, wanted):
        for value in values:
            found = convert(value, hint)
            assert (found, type(found)) == (wanted, type(wanted))

    @pytest.mark.parametrize(
        "hint, values, told",
        [
            (bool, ["maybe", "", 2, 1.0, None, []], "true or false"),
            (int, ["7.5", 7.5, "x", True, None, "", math.nan, math.inf], "whole number"),
            (float, ["nan", "inf", "x", True, None], "a number"),
            (str, [3], "must be text"),
            (Path, [3], "must be a path"),
            (list[int], ["1,x"], "whole number"),
            (list[int], [3], "a list"),
            (Literal["debug", "warning"], ["loud"], "one of debug, warning"),
            (Colour, ["green"], "one of red, dark-blue"),
        ],
    )
    def test_other_values_are_errors_with_what_is_allowed(self, hint, values, told):
        for value in values:
            with pytest.raises(ValueError, match=told):
                convert(value, hint)

    @pytest.mark.parametrize("hint", [dict, int | str, complex, int | str | None])
    def test_a_type_that_settings_cannot_have(self, hint):
        with pytest.raises(TypeError, match="a setting cannot have the type"):
            convert("x", hint)


class TestQuantities:
    @pytest.mark.parametrize(
        "value, mb",
        [("4096", 4096), (4096, 4096), ("4Gi", 4096), ("512Mi", 512), ("1M", 1), ("2G", 1908)],
    )
    def test_memory_is_mb_or_a_quantity(self, value, mb):
        assert parse_memory(value) == mb

    @pytest.mark.parametrize("value, cpus", [("2", 2.0), ("500m", 0.5), (0.25, 0.25), (3, 3.0)])
    def test_cpus_are_numbers_or_thousandths(self, value, cpus):
        assert parse_cpu(value) == cpus

    @pytest.mark.parametrize(
        "parse, values, told",
        [
            (parse_memory, ["0", "-1", "4Xi", "", True, 1.5, "4GiMi"], "memory"),
            (parse_cpu, ["0", "-2", "many", "0m", None, True], "positive number of CPUs"),
        ],
    )
    def test_no_quantities(self, parse, values, told):
        for value in values:
            with pytest.raises(ValueError, match=told):
                parse(value)


@given(
    st.one_of(
        st.tuples(st.booleans(), st.just(bool)),
        st.tuples(st.integers(), st.just(int)),
        st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.just(float)),
        st.tuples(st.sampled_from(Colour), st.just(Colour)),
        st.tuples(
            st.lists(st.text("abc ,=/", min_size=1).map(str.strip).filter(bool)),
            st.just(list[str]),
        ),
    )
)
def test_what_is_rendered_for_a_job_is_read_back(pair):
    value, hint = pair

    assert convert(render(value), hint) == value


class TestBuild:
    @attrs.frozen(kw_only=True)
    class Settings:
        hosts: list[str]
        port: int = attrs.field(default=22, validator=attrs.validators.in_(range(1, 65536)))
        low: int = 0
        high: int = 9
        token: str = attrs.field(default="", metadata={"secret": True})
        hidden: int = attrs.field(default=0, metadata={"internal": True})

        def __attrs_post_init__(self):
            if self.low > self.high:
                raise ValueError("low is above high")

    def build(self, **values):
        origin = Origin(OriginKind.ENVIRONMENT, "FIBER_X")
        return build(self.Settings, {k: RawValue(v, origin) for k, v in values.items()}, "ssh_")

    def test_values_are_converted(self):
        assert self.build(hosts="a,b", port="23") == {"hosts": ["a", "b"], "port": 23}

    def test_internal_fields_are_no_settings(self):
        assert "hidden" not in settings_of(self.Settings)
        assert settings_of(dict) == {}

    def test_the_error_for_a_missing_value_has_the_way_to_set_it(self):
        with pytest.raises(ConfigError, match=r"ssh_hosts must be set.*FIBER_SSH_HOSTS"):
            self.build()

    def test_nothing_is_missing_where_nothing_is_made(self):
        assert build(self.Settings, {}, "ssh_", complete=False) == {}

    @pytest.mark.parametrize(
        "values, told",
        [
            ({"port": "x"}, r"'x' for 'ssh_port' \(environment FIBER_X\): must"),
            ({"port": "0", "low": "1"}, r"bad value '0' for 'ssh_port' \(environment"),
            ({"low": "5", "high": "4"}, r"ssh_low .*ssh_high .*: low is above high"),
        ],
        ids=["conversion", "validator", "values that do not go together"],
    )
    def test_the_error_for_a_bad_value_names_keys_and_origin(self, values, told):
        with pytest.raises(ConfigError, match=told):
            self.build(hosts="a", **values)

    def test_a_secret_is_in_no_error(self):
        with pytest.raises(ConfigError) as caught:
            self.build(hosts="a", token=12345, low="5", high="4")
        assert "12345" not in str(caught.value)
        with pytest.raises(ConfigError) as caught:
            self.build(hosts="a", token="hunter2", low="5", high="4")
        assert "hunter2" not in repr(caught.value)
        assert caught.value.__cause__ is None
