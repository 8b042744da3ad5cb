"""The backend for joblib: results, errors, batches, nesting, generators and worker deaths."""

import gc
import multiprocessing
import os
import pickle

import numpy as np
import pytest

import fiber
from fiber._wire import codec
from fiber.exceptions import WorkerCrashedError
from open_memory import open_memory
from pool_tasks import die_once, fail_at, nap, note, pid, square
from require import need_module
from waiting import until

try:
    import joblib
except ImportError:
    # tests skip, or fail where it is required
    joblib = None

pytestmark = pytest.mark.usefixtures("shared_runtime")


def backend_inside():
    backend, _ = joblib.parallel.get_active_backend()
    return type(backend).__name__, joblib.effective_n_jobs(2)


def nested(n):
    names = joblib.Parallel(n_jobs=2)(joblib.delayed(backend_inside)() for _ in range(2))
    inside, here = names[0], backend_inside()
    squares = joblib.Parallel(n_jobs=2)(joblib.delayed(square)(x) for x in range(n))
    return here, inside, squares, pid()


def place_of(array):
    return array.ctypes.data, array.flags.writeable, float(array.sum()), pid()


def put(array, index, value):
    array[index] = value
    return type(array).__name__


def total(array):
    return array.filename is not None, float(array.sum())


def as_pickled(array):
    return codec.split(array, [], fiber.joblib._Arrays(None).reducers())


def threads_allowed():
    return os.environ.get("OMP_NUM_THREADS")


@pytest.fixture(scope="module", autouse=True)
def registered():
    need_module("joblib")
    from fiber.joblib import register

    register()


@pytest.fixture(autouse=True)
def _collected():
    yield
    # the last Parallel of a test may be part of a cycle with its exception
    gc.collect()


@pytest.fixture
def in_fiber():
    with joblib.parallel_config(backend="fiber", n_jobs=2):
        yield


def run(function, *iterables, **options):
    return joblib.Parallel(**options)(
        joblib.delayed(function)(*x) for x in zip(*iterables, strict=True)
    )


@pytest.fixture(scope="class")
def workers(registered, shared_runtime):
    """Workers for all tests of a class, which end none."""
    with joblib.parallel_config(backend="fiber", n_jobs=2):
        until(lambda: len(set(run(pid, range(20)))) == 2)
        yield


@pytest.mark.usefixtures("workers")
class TestResults:
    @pytest.mark.parametrize("count, batch_size", [(0, "auto"), (500, "auto"), (50, 1), (50, 7)])
    def test_they_come_in_order_in_batches_of_any_size(self, count, batch_size):
        offset = 10
        found = run(lambda x: x + offset, range(count), batch_size=batch_size)
        assert found == list(range(10, 10 + count))

    @pytest.mark.parametrize("kind", ["generator", "generator_unordered"])
    def test_a_generator_yields_them_as_they_are_asked_for(self, kind):
        results = run(square, range(50), return_as=kind)
        found = [next(results), *results]
        assert (found if kind == "generator" else sorted(found)) == [x * x for x in range(50)]

    def test_the_same_workers_do_one_call_after_the_other(self):
        with joblib.Parallel() as parallel:
            found = [parallel(joblib.delayed(pid)() for _ in range(20)) for _ in range(3)]
        found.append(run(pid, range(20)))
        pids = {worker for workers in found for worker in workers}
        assert len(pids) <= 2
        assert os.getpid() not in pids

    def test_parallel_calls_inside_a_task_are_threads_and_then_sequential(self):
        (here, inside, squares, worker), *_ = run(nested, [4, 4])
        assert here[0] == "ThreadingBackend"
        assert inside[0] == "SequentialBackend"
        assert squares == [0, 1, 4, 9]
        assert worker != os.getpid()


class TestWorkers:
    @pytest.mark.parametrize("n_jobs", [None, -1])
    def test_without_a_number_there_are_as_many_as_the_backend_has_cpus(self, n_jobs):
        with joblib.parallel_config(backend="fiber", n_jobs=n_jobs):
            assert joblib.effective_n_jobs() == fiber.cpu_count()

    def test_numbers_below_zero_leave_some_cpus_free(self, monkeypatch):
        monkeypatch.setattr(fiber.joblib, "cpu_count", lambda: 8)
        backend = fiber.joblib.FiberBackend()
        assert [backend.effective_n_jobs(n) for n in (-1, -2, -20, 3, None)] == [8, 7, 1, 3, 1]
        with pytest.raises(ValueError, match="no meaning"):
            backend.effective_n_jobs(0)

    def test_one_job_runs_in_the_program(self):
        with joblib.parallel_config(backend="fiber", n_jobs=1):
            assert set(run(pid, range(3))) == {os.getpid()}

    def test_they_end_with_the_context(self):
        before = set(fiber.active_children())
        with joblib.parallel_config(backend="fiber", n_jobs=2):
            run(pid, range(4))
        until(lambda: not set(fiber.active_children()) - before)

    def test_numerical_libraries_get_so_many_threads(self):
        with joblib.parallel_config(backend="fiber", n_jobs=2, inner_max_num_threads=3):
            found = joblib.Parallel()(joblib.delayed(threads_allowed)() for _ in range(4))
        assert set(found) == {"3"}

    def test_options_of_the_executor_may_be_given(self, tmp_path):
        with (
            joblib.parallel_config(backend="fiber", n_jobs=2, error_handling=False),
            pytest.raises(WorkerCrashedError, match="must not run twice"),
        ):
            run(die_once, [str(tmp_path / "flag")] * 5, batch_size=1)


class TestErrors:
    def test_the_exception_of_a_task_is_raised_and_what_follows_works(self, in_fiber):
        with joblib.Parallel() as parallel:
            with pytest.raises(ValueError, match="bad 3"):
                parallel(joblib.delayed(fail_at)(x, 3) for x in range(20))
            assert parallel(joblib.delayed(square)(x) for x in range(3)) == [0, 1, 4]
        assert run(square, range(5)) == [0, 1, 4, 9, 16]

    def test_an_error_ends_the_others_soon(self, in_fiber, tmp_path):
        noted = tmp_path / "told"
        calls = [joblib.delayed(fail_at)(3, 3), joblib.delayed(nap)(60)]
        calls += [joblib.delayed(note)(str(noted), n) for n in range(20)]
        with pytest.raises(ValueError, match="bad 3"):
            joblib.Parallel(batch_size=1, pre_dispatch="all")(calls)

    def test_a_timeout_is_an_error(self, in_fiber):
        with pytest.raises(multiprocessing.TimeoutError):
            run(nap, [60, 60], timeout=0.3)

    def test_a_killed_workers_tasks_run_again(self, in_fiber, tmp_path):
        assert run(die_once, [str(tmp_path / "flag")] * 10) == ["survived"] * 10

    def test_a_generator_may_be_left_early(self, in_fiber):
        results = run(nap, [0.01] * 50, return_as="generator")
        assert next(results) == 0.01
        with pytest.warns(UserWarning, match="have been cancelled"):
            results.close()
        assert run(square, range(3)) == [0, 1, 4]


#: of the array of a file, as tasks are given it
VIEWS = {
    "whole": lambda array: array,
    "turned": lambda array: array.T,
    "part": lambda array: array[3:, 2:5],
    "backwards": lambda array: array[::-2, ::-1],
    "element": lambda array: array[2:3, 4:5],
    "nothing": lambda array: array[2:2],
}


@pytest.mark.usefixtures("workers")
class TestArrays:
    def test_a_large_one_is_mapped_once_by_each_worker(self):
        large = np.ones(200_000)
        found = run(place_of, [large] * 20, batch_size=1)
        assert {writeable for _, writeable, *_ in found} == {False}
        assert len({address for address, *_ in found}) <= len({worker for *_, worker in found})

    def test_it_is_found_inside_other_objects_and_beside_lambdas(self):
        large = np.ones(200_000)
        found = run(lambda held: place_of(held["x"]), [{"x": large}] * 4)
        assert {(writeable, value) for _, writeable, value, _ in found} == {(False, 200_000.0)}

    def test_what_the_program_changes_between_calls_is_seen(self):
        large = np.ones(200_000)
        with joblib.Parallel() as parallel:
            for expected in (200_000.0, 200_001.0):
                found = parallel(joblib.delayed(place_of)(large) for _ in range(4))
                assert {value for _, _, value, _ in found} == {expected}
                large[0] += 1

    @pytest.mark.parametrize(
        "options", [{"max_nbytes": None}, {"max_nbytes": "2M"}, {"mmap_mode": "c"}], ids=str
    )
    def test_a_copy_of_it_is_sent_where_the_program_says_so(self, options):
        found = run(place_of, [np.ones(200_000)] * 4, **options)
        assert {writeable for _, writeable, *_ in found} == {True}

    def test_their_memory_is_freed_soon(self):
        before = open_memory()
        for _ in range(3):
            run(place_of, [np.ones(200_000) for _ in range(10)])
        until(lambda: open_memory() <= before)

    @pytest.mark.parametrize("mode", ["r+", "w+"])
    def test_what_tasks_write_to_a_map_of_a_file_is_written_to_the_file(self, mode, tmp_path):
        np.zeros(10).tofile(tmp_path / "x")
        array = np.memmap(tmp_path / "x", float, mode, shape=10)
        assert set(run(put, [array] * 10, range(10), range(10))) == {"memmap"}
        assert list(array) == list(range(10))
        assert list(np.fromfile(tmp_path / "x")) == list(range(10))

    def test_a_large_map_that_is_only_read_is_no_copy_either(self, tmp_path):
        np.ones(200_000).tofile(tmp_path / "x")
        array = np.memmap(tmp_path / "x", float, "r")
        assert run(total, [array] * 3) == [(True, 200_000.0)] * 3
        (tmp_path / "x").unlink()
        assert run(np.sum, [array] * 3) == [200_000.0] * 3

    def test_what_a_task_writes_to_a_private_map_is_its_own(self, tmp_path):
        np.ones(200_000).tofile(tmp_path / "x")
        array = np.memmap(tmp_path / "x", float, "c")
        run(put, [array] * 3, range(3), [5.0] * 3)
        assert (np.fromfile(tmp_path / "x") == 1).all()

    @pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_a_view_of_a_map_is_the_same_part_of_the_file(self, view, order, tmp_path):
        np.arange(72, dtype=">i4").tofile(tmp_path / "x")
        array = np.memmap(tmp_path / "x", ">i4", "r+", 32, (8, 8), order)
        part = view(array)
        found = pickle.loads(as_pickled(part))
        assert found.dtype == part.dtype
        assert np.array_equal(found, part)
        found[...] = -1
        assert (part == -1).all()
        assert (array == -1).sum() == part.size

    def test_a_writable_map_of_a_file_that_a_worker_lacks_is_refused(self, tmp_path):
        array = np.memmap(tmp_path / "x", float, "w+", shape=10)
        pickled = as_pickled(array)
        (tmp_path / "x").rename(tmp_path / "y")
        (tmp_path / "x").write_bytes(bytes(80))
        with pytest.raises(FileNotFoundError, match="put it on a file system that all hosts have"):
            pickle.loads(pickled)
