"""Tasks that close or replace descriptors which they did not open, as a ``daemonize()`` does."""

import os
import resource
import time

import pytest

import fiber
import pool_tasks as tasks
from fiber.exceptions import WorkerCrashedError
from fiber.model import Timing

#: longer than any test may take
FOR_EVER = 600


@pytest.fixture(params=["unix", "tls"], autouse=True)
def transport(request, monkeypatch):
    monkeypatch.setenv("FIBER_LOCAL_TRANSPORT", request.param)
    return request.param


def close_those_above_the_standard_ones():
    os.closerange(3, 1024)


def close_all():
    os.closerange(0, 1024)


def open_others_in_their_place():
    close_those_above_the_standard_ones()
    for _ in range(40):
        os.open(os.devnull, os.O_RDWR)


def replace_all():
    other, _ = os.pipe()
    for number in range(3, 64):
        if number != other:
            os.dup2(other, number)


def at_three(act, number):
    if number == 3:
        act()
    return number


def close_and_go_on():
    close_those_above_the_standard_ones()
    time.sleep(FOR_EVER)


def open_no_files(number):
    if number == 3:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
    return os.getpid()


@pytest.mark.parametrize(
    "act", [close_those_above_the_standard_ones, close_all, open_others_in_their_place, replace_all]
)
def test_such_a_task_is_given_up_and_all_others_have_results(act):
    with fiber.Pool(2) as pool:
        with pytest.raises(WorkerCrashedError) as caught:
            pool.starmap_async(at_three, [(act, n) for n in range(8)], 1).get(60)
        results = caught.value.results
        assert [results[n] for n in range(8) if n != 3] == [0, 1, 2, 4, 5, 6, 7]
        assert "descriptors that it did not open" in str(caught.value)
        assert len(caught.value.attempts) == 3
        assert pool.map_async(tasks.same, range(8), 1).get(60) == list(range(8))


def is_given_up_at_once(act, **options):
    with fiber.Pool(1, **options) as pool:
        with pytest.raises(WorkerCrashedError, match="descriptors that it did not open"):
            pool.apply_async(act).get(60)
        assert pool.apply_async(tasks.same, (1,)).get(60) == 1


def test_one_that_must_not_run_twice_is_given_up_at_once():
    is_given_up_at_once(close_all, error_handling=False)


@pytest.mark.usefixtures("tenth_timing")
def test_a_task_that_goes_on_without_them_is_ended():
    # a worker within a host is ended by its pool, one between hosts ends by itself
    is_given_up_at_once(close_and_go_on, max_attempts=1)


def test_between_hosts_its_worker_finds_out_itself(transport, monkeypatch):
    if transport != "tls":
        pytest.skip("within a host the pool sees it at once")
    monkeypatch.setattr("fiber._config.settings.Config.timing", Timing(exit_report=FOR_EVER))
    is_given_up_at_once(close_and_go_on, max_attempts=1)


def test_a_worker_that_may_open_no_files_any_more_works_on():
    with fiber.Pool(1) as pool:
        (worker,) = set(pool.map_async(open_no_files, range(8), 1).get(60))
        assert pool.apply_async(tasks.pid).get(60) == worker


@pytest.mark.parametrize("act, code", [(close_all, 0), (lambda: close_all() or os.abort(), -6)])
def test_a_process_that_closes_them_ends_as_it_would_have(act, code):
    process = fiber.Process(target=act)
    process.start()
    process.join(60)
    assert process.exitcode == code
