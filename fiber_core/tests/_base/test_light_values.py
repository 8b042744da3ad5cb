"""Classes of values that are made at once."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import attrs
import pytest

from fiber._base import light_values as values
from fiber.model import JobState, JobStatus


@values.frozen
class Point:
    """A value with a default, a converter and a check."""

    x: int = values.field(validator=values.ge(0))
    y: int = values.field(default=0, converter=int)
    names: list[str] = values.field(factory=list, hash=False)


@values.frozen(kw_only=True)
class Secret:
    """A value that shows and compares only some of its fields."""

    user: str
    word: str = values.field(repr=False, eq=False)


@values.define
class Record:
    """A mutable record."""

    count: int = 0

    def grow(self) -> None:
        """One more."""
        self.count += 1


@values.define
class Longer(Record):
    """A record with one more field."""

    label: str = ""


class TestMaking:
    def test_by_position_and_by_name_with_defaults_of_its_own(self):
        assert Point(1, 2) == Point(x=1, y="2")
        assert Point(1).names is not Point(1).names

    @pytest.mark.parametrize(
        "make, error, told",
        [
            (Point, TypeError, "__init__"),
            (lambda: Point(x=1, z=1), TypeError, "__init__"),
            (lambda: Secret("me", "word"), TypeError, "positional"),
            (lambda: Point(-1), ValueError, "'x' must be >= 0: -1"),
        ],
        ids=["missing", "unknown", "by position", "what does not fit"],
    )
    def test_false_arguments_are_refused(self, make, error, told):
        with pytest.raises(error, match=told):
            make()

    def test_fields_of_a_base_come_first(self):
        assert repr(Longer(2, "a")) == "Longer(count=2, label='a')"


class TestBeing:
    def test_equal_where_class_and_fields_are(self):
        assert Point(1) != Point(2)
        assert Secret(user="a", word="x") == Secret(user="a", word="y")
        assert Record(1) == Record(1)
        assert Point(1) != (1, 0)
        assert Record(1) != Longer(1)

    def test_hashed_by_what_compares_unless_it_may_change(self):
        assert len({Point(1), Point(1)}) == 1
        with pytest.raises(TypeError, match="unhashable"):
            hash(Record())

    def test_a_secret_is_not_shown(self):
        assert repr(Secret(user="a", word="x")) == "Secret(user='a')"

    def test_a_value_never_changes(self):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            Point(1).x = 2
        with pytest.raises(AttributeError):
            del Point(1).x

    def test_a_record_does_in_its_fields(self):
        record = Record()
        record.grow()
        assert record.count == 1
        with pytest.raises(AttributeError):
            record.other = 1

    @pytest.mark.parametrize(
        "value", [Point(1, 2, ["a"]), Record(3), JobStatus(state=JobState.PENDING)]
    )
    def test_it_is_copied_and_pickled(self, value):
        assert copy.deepcopy(value) == value
        assert pickle.loads(pickle.dumps(value)) == value


class TestWhatAttrsKnows:
    def test_its_functions_work(self):
        assert attrs.has(Point)
        assert [field.name for field in attrs.fields(Point)] == ["x", "y", "names"]
        for module in (attrs, values):
            assert module.evolve(Point(1, 2), x=3) == Point(3, 2)
            assert module.asdict(Point(1)) == {"x": 1, "y": 0, "names": []}
        assert attrs.fields(Secret).user.default is attrs.NOTHING

    def test_a_program_that_makes_values_does_not_load_it(self):
        program = (
            "import sys; from fiber.model import JobState, JobStatus; "
            "JobStatus(state=JobState.PENDING); sys.exit('attr' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
