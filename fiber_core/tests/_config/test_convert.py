"""Text and Python values become the types that a settings class names, or an error that says why."""

import enum
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
    @pytest.mark.parametrize("value", ["true", "True", "1", "YES", " on ", True, 1])
    def test_true(self, value):
        assert convert(value, bool) is True

    @pytest.mark.parametrize("value", ["false", "FALSE", "0", "no", "off", False, 0])
    def test_false(self, value):
        assert convert(value, bool) is False

    @pytest.mark.parametrize("value", ["maybe", "", 2, 1.0, None, []])
    def test_no_boolean(self, value):
        with pytest.raises(ValueError, match="true or false"):
            convert(value, bool)

    @pytest.mark.parametrize("value, number", [("7", 7), (" -7 ", -7), (7, 7), (7.0, 7)])
    def test_whole_numbers(self, value, number):
        assert convert(value, int) == number
        assert type(convert(value, int)) is int

    @pytest.mark.parametrize("value", ["7.5", 7.5, "x", True, None, "", float("nan"), float("inf")])
    def test_no_whole_number(self, value):
        with pytest.raises(ValueError, match="whole number"):
            convert(value, int)

    @pytest.mark.parametrize("value, number", [("0.5", 0.5), ("1e3", 1000.0), (2, 2.0), (0.5, 0.5)])
    def test_numbers(self, value, number):
        assert convert(value, float) == number
        assert type(convert(value, float)) is float

    @pytest.mark.parametrize("value", ["nan", "inf", "x", True, None])
    def test_no_number(self, value):
        with pytest.raises(ValueError, match="a number"):
            convert(value, float)

    def test_text_and_paths(self):
        assert convert("a b", str) == "a b"
        assert convert("/x/y", Path) == Path("/x/y")
        assert convert(Path("/x"), Path) == Path("/x")
        assert convert("~/x", Path) == Path.home() / "x"
        with pytest.raises(ValueError, match="must be text"):
            convert(3, str)
        with pytest.raises(ValueError, match="must be a path"):
            convert(3, Path)

    @pytest.mark.parametrize("value", ["a,b", "a, b,", "a\nb", ["a", "b"], ("a", "b")])
    def test_lists(self, value):
        assert convert(value, list[str]) == ["a", "b"]
        assert convert(value, tuple[str, ...]) == ("a", "b")
        assert convert(value, frozenset[str]) == {"a", "b"}

    def test_lists_convert_their_items(self):
        assert convert("1,2", list[int]) == [1, 2]
        assert convert("", list[int]) == []
        with pytest.raises(ValueError, match="whole number"):
            convert("1,x", list[int])
        with pytest.raises(ValueError, match="a list"):
            convert(3, list[int])

    def test_choices(self):
        assert convert("WARNING", Literal["debug", "warning"]) == "warning"
        assert convert("2", Literal[1, 2]) == 2
        with pytest.raises(ValueError, match="one of debug, warning"):
            convert("loud", Literal["debug", "warning"])

    def test_enums(self):
        assert convert("Dark-Blue", Colour) is Colour.DARK_BLUE
        assert convert(Colour.RED, Colour) is Colour.RED
        with pytest.raises(ValueError, match="one of red, dark-blue"):
            convert("green", Colour)

    def test_none(self):
        assert convert("none", int | None) is None
        assert convert("", Optional[int]) is None  # noqa: UP045  the older spelling too
        assert convert("3", Optional[int]) == 3  # noqa: UP045
        assert convert(None, list[str] | None) is None

    def test_anything(self):
        assert convert({"a": 1}, Any) == {"a": 1}

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

    @pytest.mark.parametrize("value", ["0", "-1", "4Xi", "", True, 1.5, "4GiMi"])
    def test_no_memory(self, value):
        with pytest.raises(ValueError, match="memory"):
            parse_memory(value)

    @pytest.mark.parametrize("value, cpus", [("2", 2.0), ("500m", 0.5), (0.25, 0.25), (3, 3.0)])
    def test_cpus_are_numbers_or_thousandths(self, value, cpus):
        assert parse_cpu(value) == cpus

    @pytest.mark.parametrize("value", ["0", "-2", "many", "0m", None, True])
    def test_no_cpus(self, value):
        with pytest.raises(ValueError, match="positive number of CPUs"):
            parse_cpu(value)


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

    def test_a_value_that_does_not_convert_names_key_and_origin(self):
        with pytest.raises(ConfigError, match=r"'x' for 'ssh_port' \(environment FIBER_X\): must"):
            self.build(hosts="a", port="x")

    def test_a_value_that_a_validator_refuses_names_its_key(self):
        with pytest.raises(ConfigError, match=r"bad value '0' for 'ssh_port' \(environment"):
            self.build(hosts="a", port="0", low="1")

    def test_values_that_do_not_go_together_are_all_named(self):
        with pytest.raises(ConfigError, match=r"ssh_low .*ssh_high .*: low is above high"):
            self.build(hosts="a", low="5", high="4")

    def test_a_secret_is_in_no_error(self):
        with pytest.raises(ConfigError) as caught:
            self.build(hosts="a", token=12345, low="5", high="4")
        assert "12345" not in str(caught.value)
        with pytest.raises(ConfigError) as caught:
            self.build(hosts="a", token="hunter2", low="5", high="4")
        assert "hunter2" not in repr(caught.value)
        assert caught.value.__cause__ is None
