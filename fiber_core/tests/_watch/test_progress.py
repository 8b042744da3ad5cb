"""Progress of calls: what is counted, where it is shown, and that it harms nothing."""

import contextlib
import io
import logging
import sys
import types

import pytest

import fiber
from fiber._watch import progress
from fiber.model import Timing
from fiber.watching import Progress
from pool_tasks import nap, nap_and_tell, square
from waiting import until

pytestmark = pytest.mark.usefixtures("shared_runtime")

NOW = Progress(
    function="train",
    total=1000,
    done=200,
    failed=3,
    elapsed=10.0,
    workers=5,
    wanted=8,
    waiting=3,
    reason="Insufficient cpu.",
    is_over=False,
)


def fail_on_odd(number, _=None):
    if number % 2:
        raise ValueError(number)
    return number


@pytest.fixture(scope="module")
def pool(shared_runtime):
    with fiber.Pool(2) as pool:
        # both workers are up
        until(lambda: len(set(pool.map(nap_and_tell, [0.02] * 8))) == 2)
        yield pool
    pool.join()


@pytest.fixture
def executor():
    with fiber.Executor(2) as executor:
        yield executor


class Terminal(io.StringIO):
    def isatty(self):
        return True


def take_all(results):
    """Draw an iterator to its end, past errors."""
    while True:
        try:
            next(results)
        except StopIteration:
            return
        except ValueError:
            continue


@pytest.mark.parametrize(
    "call",
    [
        lambda pool, seen: pool.map(fail_on_odd, range(40), progress=seen),
        lambda pool, seen: pool.starmap(fail_on_odd, zip(range(40)), progress=seen),
        lambda pool, seen: pool.map_async(fail_on_odd, range(40), progress=seen).get(60),
        lambda pool, seen: pool.starmap_async(fail_on_odd, zip(range(40)), progress=seen).get(60),
        lambda pool, seen: take_all(pool.imap(fail_on_odd, range(40), progress=seen)),
        lambda pool, seen: take_all(
            pool.imap_unordered(fail_on_odd, iter(range(40)), progress=seen)
        ),
    ],
    ids=["map", "starmap", "map_async", "starmap_async", "imap", "imap_unordered"],
)
def test_the_last_value_tells_how_all_items_ended(pool, call):
    seen = []
    with contextlib.suppress(ValueError):
        call(pool, seen.append)

    until(lambda: seen and seen[-1].is_over)
    last = seen[-1]
    assert (last.function, last.total, last.done, last.failed) == ("fail_on_odd", 40, 40, 20)
    assert (last.workers, last.wanted, last.reason) == (2, 2, "")
    assert [now.is_over for now in seen].count(True) == 1


@pytest.mark.parametrize("ahead", [None, 4])
def test_an_executors_map_has_progress_too(executor, ahead):
    seen = []

    results = executor.map(square, range(40), buffersize=ahead, progress=seen.append)

    assert list(results) == [x * x for x in range(40)]
    assert (seen[-1].total, seen[-1].done, seen[-1].is_over) == (40, 40, True)


def test_a_value_comes_while_the_work_goes_on(pool):
    seen = []

    pool.map(nap, [Timing().progress * 2] * 2, progress=seen.append)

    assert not seen[0].is_over
    assert seen[0].total == 2


def test_an_error_of_who_is_told_ends_the_telling_and_not_the_tasks(pool, caplog):
    def refuse(now):
        raise RuntimeError("no more")

    with caplog.at_level(logging.WARNING, "fiber"):
        assert pool.map(square, range(5), progress=refuse) == [0, 1, 4, 9, 16]

    (record,) = caplog.records
    assert record.getMessage() == (
        "fiber: the progress of square is not shown any more; its tasks go on"
    )


def test_what_can_show_nothing_is_refused_before_anything_runs(pool, executor):
    for call in (pool.map, pool.imap, executor.map):
        with pytest.raises(TypeError, match="progress must be True, False or a callable, not 3"):
            call(square, range(5), progress=3)


def test_a_function_that_cannot_be_sent_fails_as_without_progress(pool):
    with pytest.raises(TypeError, match="pickle"):
        pool.map(types.MethodType(square, (i for i in ())), [1], progress=True)


def test_where_there_is_no_terminal_there_are_lines(pool, capsys):
    pool.map(square, range(7), progress=True)

    said = capsys.readouterr().err
    assert said.startswith("fiber: square: 7 of 7 done, ")
    assert said.count("\n") == 1


def test_a_terminal_has_a_bar_and_below_it_why_workers_wait(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    show, _ = progress.choose(Timing())
    other, _ = progress.choose(Timing())

    show(NOW)
    other(NOW)
    shown = terminal.getvalue()
    for each in (show, other):
        each(Progress(**{**vars_of(NOW), "done": 1000, "is_over": True}))

    assert "200 of 1000 done, 20/s, 40.0 s left, 3 failed" in shown
    assert "5 of 8 workers, 3 wait: Insufficient cpu." in shown
    assert "1000 of 1000 done" in terminal.getvalue()
    # the cursor is shown again
    assert terminal.getvalue().rstrip().endswith("\x1b[?25h")


def test_a_notebook_has_a_bar_of_tqdms(monkeypatch):
    bars = []

    class Bar:
        def __init__(self, total, desc):
            self.total, self.desc, self.open = total, desc, True
            bars.append(self)

        def set_postfix_str(self, text, refresh):
            self.text = text

        def close(self):
            self.open = False

    fake = types.ModuleType("tqdm")
    fake.__spec__ = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "tqdm", fake)
    notebook = types.ModuleType("tqdm.notebook")
    notebook.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm.notebook", notebook)
    show, _ = progress.choose(Timing())

    show(NOW)
    show(Progress(**{**vars_of(NOW), "done": 1000, "is_over": True}))

    (bar,) = bars
    assert (bar.total, bar.n, bar.desc, bar.open) == (1000, 1000, "train", False)
    assert bar.text == "3 failed, 5 of 8 workers, 3 wait: Insufficient cpu."


def vars_of(value):
    return {name: getattr(value, name) for name in Progress.__annotations__}
