"""Small parts: entry points, known backends, threads for what is done in turn, classes of values."""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import inspect
import logging
import pickle
import pydoc
import queue
import sys
import sysconfig
import threading

import attrs
import pytest

from fiber._base import entry_points as distributions
from fiber._base import light_values as values
from fiber._base.entry_points import known_backends
from fiber._base.threads import CallbackThread, SerialExecutor
from fiber.exceptions import PeerLostError
from fiber.model import JobState, JobStatus


@pytest.fixture
def site(tmp_path, monkeypatch):
    # importlib.metadata imports modules of the standard library when it reads something
    ours = str(tmp_path / "first"), str(tmp_path / "second"), sysconfig.get_path("stdlib")
    monkeypatch.setattr(sys, "path", [*ours])
    distributions.version.cache_clear()
    yield tmp_path
    distributions.version.cache_clear()


def install(folder, name, version, entry_points="", headers="METADATA"):
    info = folder / f"{name}-{version}.{'dist-info' if headers == 'METADATA' else 'egg-info'}"
    info.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: not this\n"
    (info / headers).write_text(text)
    if entry_points:
        (info / "entry_points.txt").write_text(entry_points)


def told(points):
    return sorted((p.name, p.value, p.distribution, p.version) for p in points)


def by_stdlib(group):
    found = importlib.metadata.entry_points(group=group)
    return told(map(distributions.EntryPoint.of, found))


class TestEntryPoints:
    def test_those_of_a_group_with_their_distributions(self, site):
        text = "[console_scripts]\na = b:c\n\n[fiber]\n# ours\nblue = plugin_blue\nred=red.sub:thing [x]\n"
        install(site / "first", "Fiber.Blue", "1.2", text)
        install(site / "second", "other", "3", "[fibers]\nno = no\n")
        found = told(distributions.entry_points("fiber"))
        assert found == by_stdlib("fiber")
        assert ("blue", "plugin_blue", "Fiber.Blue", "1.2") in found
        assert len(found) == 2

    def test_of_one_name_the_first_on_the_path_counts(self, site):
        install(site / "first", "fiber_blue", "2", "")
        install(site / "second", "Fiber_Blue", "1", "[fiber]\nblue = old\n")
        assert told(distributions.entry_points("fiber")) == by_stdlib("fiber") == []

    def test_metadata_of_older_tools(self, site):
        install(site / "second", "old", "1", "[fiber]\nold = old\n", headers="PKG-INFO")
        assert told(distributions.entry_points("fiber")) == by_stdlib("fiber") != []

    def test_a_finder_of_another_library_is_used(self, site, monkeypatch):
        class Finder(importlib.metadata.DistributionFinder):
            def find_spec(self, *_):
                return None

            def find_distributions(self, context=None):
                return [importlib.metadata.Distribution.at(site / "hidden" / "far-1.dist-info")]

        install(site / "hidden", "far", "1", "[fiber]\nfar = far\n")
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
        assert told(distributions.entry_points("fiber")) == [("far", "far", "far", "1")]

    def test_what_is_named_is_loaded(self):
        point = distributions.EntryPoint("a", "os:path.join [extra]", "a", "1")
        assert point.load() is __import__("os").path.join
        assert distributions.EntryPoint("a", "os", "a", "1").load() is __import__("os")

    def test_what_is_not_installed_has_no_version(self, site):
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            distributions.version("nothing")


def test_each_known_backend_names_its_distribution_and_no_word_is_used_twice():
    backends = known_backends()
    assert backends["k8s"].aliases == ("kubernetes",)
    for name, known in backends.items():
        assert (known.name, known.distribution) == (name, f"fiber-{name}")

    words = [word for known in backends.values() for word in (known.name, *known.aliases)]
    assert len(words) == len(set(words))


# -- threads that do one thing after another, which no failure of one keeps from the next


@pytest.fixture
def executor():
    with contextlib.closing(SerialExecutor("test-executor", expected=PeerLostError)) as executor:
        yield executor


@pytest.fixture
def callbacks():
    with contextlib.closing(CallbackThread("test-callbacks")) as callbacks:
        yield callbacks


@pytest.fixture(params=["executor", "callbacks"])
def runner(request):
    return request.getfixturevalue(request.param)


def submit(runner, action):
    if isinstance(runner, CallbackThread):
        return runner.put(lambda _: action(), None)
    return runner.submit(action)


def test_actions_run_in_order_on_a_thread_of_their_own_and_none_after_the_end(runner, request):
    done = []
    for number in range(5):
        assert submit(runner, lambda n=number: done.append((n, threading.current_thread().name)))
    runner.close()
    runner.close()
    assert not submit(runner, lambda: done.append("late"))

    name = f"test-{request.node.callspec.params['runner']}"
    assert done == [(number, name) for number in range(5)]


def test_it_may_close_itself_and_the_thread_still_ends(runner):
    threads = queue.SimpleQueue()

    def close():
        threads.put(threading.current_thread())
        runner.close()

    submit(runner, close)
    thread = threads.get(timeout=20)
    thread.join(20)
    assert not thread.is_alive()


def test_what_ran_is_not_kept_alive_by_its_thread(runner):
    ran = threading.Event()
    value = [1]
    count = sys.getrefcount(value)
    submit(runner, lambda kept=value: None)
    submit(runner, ran.set)
    assert ran.wait(20)
    assert sys.getrefcount(value) == count


def test_one_that_fails_is_logged_and_the_next_is_done(executor, caplog):
    done = []
    executor.submit(lambda: 1 / 0)
    executor.submit(lambda: done.append(True))

    assert executor.drain(10)
    assert done == [True]
    assert "ZeroDivisionError" in caplog.text


def test_the_loss_of_the_process_it_talks_to_is_no_failure(executor, caplog):
    def lose():
        raise PeerLostError("gone")

    with caplog.at_level(logging.INFO, logger="fiber"):
        executor.submit(lose)
        assert executor.drain(10)
    assert not caplog.records


@pytest.mark.parametrize("error", [KeyError, SystemExit, KeyboardInterrupt])
def test_an_exception_of_a_callback_is_reported_and_the_next_one_runs(
    callbacks, monkeypatch, error
):
    def fail(_):
        raise error

    seen, raised = [], []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))
    callbacks.put(fail, 1)
    callbacks.put(seen.append, 2)
    callbacks.close()
    assert seen == [2]
    assert raised == [error]


def test_a_wait_for_what_takes_too_long_ends(executor, callbacks):
    gate = threading.Event()
    executor.submit(gate.wait)
    callbacks.put(lambda _: gate.wait(20), 1)

    assert not executor.drain(0.01)
    callbacks.close(0)
    gate.set()


# -- classes of values that are made at once


@values.frozen
class Point:
    """A value with a default, a converter and a check."""

    #: how far to the right,
    #: in metres
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
    @pytest.fixture(autouse=True, params=["the first", "later ones"])
    def instances(self, request, monkeypatch):
        # only those that follow the first few are made by compiled code
        make = values._first_init if request.param == "the first" else values._make_init
        for cls in (Point, Secret, Record, Longer):
            monkeypatch.setattr(cls, "__init__", make(cls, cls in {Point, Secret}))

    def test_by_position_and_by_name_with_defaults_of_its_own(self):
        assert Point(1, 2) == Point(x=1, y="2")
        assert Point(1).names is not Point(1).names

    @pytest.mark.parametrize(
        "make, error, told",
        [
            (Point, TypeError, "__init__"),
            (lambda: Point(x=1, z=1), TypeError, "__init__"),
            (lambda: Point(1, x=1), TypeError, "multiple values"),
            (lambda: Secret("me", "word"), TypeError, "positional"),
            (lambda: Point(-1), ValueError, "'x' must be >= 0: -1"),
        ],
        ids=["missing", "unknown", "twice", "by position", "what does not fit"],
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


class Started(Point):
    """A value that is made in a way of its own."""

    def __init__(self, where):
        super().__init__(where, where)


class TestWhatHelpShows:
    def test_fields_with_types_defaults_and_meanings(self):
        arguments = "x: int, y: int = 0, names: list[str] = list())"
        assert str(inspect.signature(Point)) == f"({arguments}"
        assert str(inspect.signature(Point.__init__)) == f"(self, {arguments}"
        shown = pydoc.plain(pydoc.render_doc(Point))
        assert "x: int\n |          how far to the right, in metres" in shown
        assert Point(1, 2).y == 2

    def test_fields_of_bases_and_names_that_have_to_be_given(self):
        assert "count: int = 0\n    label: str = ''" in inspect.getdoc(Longer)
        assert str(inspect.signature(Secret)) == "(*, user: str, word: str)"

    def test_a_class_with_a_constructor_of_its_own_has_its_signature(self):
        assert str(inspect.signature(Started)) == "(where)"
        assert not hasattr(Point(1), "__signature__")

    def test_members_of_an_enumeration_with_their_meanings(self):
        assert "UNKNOWN = 'unknown'\n        the platform was asked" in inspect.getdoc(JobState)

    def test_a_class_without_its_source_still_shows_types(self, monkeypatch):
        monkeypatch.setattr(inspect, "getsource", lambda _: (_ for _ in ()).throw(OSError))

        assert "Fields:\n    user: str\n    word: str" in inspect.getdoc(
            values.frozen(kw_only=True)(
                type("Bare", (), {"__annotations__": Secret.__annotations__})
            )
        )


class TestWhatAttrsKnows:
    def test_its_functions_work(self):
        assert attrs.has(Point)
        assert [field.name for field in attrs.fields(Point)] == ["x", "y", "names"]
        for module in (attrs, values):
            assert module.evolve(Point(1, 2), x=3) == Point(3, 2)
            assert module.asdict(Point(1)) == {"x": 1, "y": 0, "names": []}
        assert attrs.fields(Secret).user.default is attrs.NOTHING
