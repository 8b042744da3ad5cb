"""Results in asyncio: awaited, iterated over, cancelled, in several loops."""

import asyncio
import functools
import threading

import pytest

import fiber
from pool_tasks import fail_at, nap, nap_and_tell, square

pytestmark = pytest.mark.usefixtures("shared_runtime")


fail_on_three = functools.partial(fail_at, bad=3)


def in_loop(test):
    """Run a test in a loop of its own."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return run


@pytest.fixture(scope="module")
def pool(shared_runtime):
    with fiber.Pool(2) as pool:
        # both workers are there before the first test is
        while len(set(pool.map(nap_and_tell, [0.01] * 8, 1))) < 2:
            continue
        yield pool
    pool.join()


class TestResults:
    @in_loop
    async def test_a_result_is_awaited_and_again_or_its_exception_raised(self, pool):
        result = pool.apply_async(square, (3,))
        assert [await result, await result] == [9, 9]
        assert await pool.map_async(square, range(50)) == [x * x for x in range(50)]
        assert await pool.starmap_async(pow, [(2, 3)]) == [8]
        with pytest.raises(ValueError, match="bad 3"):
            await pool.apply_async(fail_on_three, (3,))

    @in_loop
    async def test_many_are_awaited_without_a_thread_each(self, pool):
        results = [pool.apply_async(nap, (0.002,)) for _ in range(100)]
        before = threading.active_count()
        gathered = asyncio.gather(*results)
        await asyncio.sleep(0)
        assert threading.active_count() <= before
        assert await gathered == [0.002] * 100

    @in_loop
    async def test_cancelling_affects_neither_the_task_nor_the_pool(self, pool):
        result = pool.apply_async(nap, (0.2,))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(result, 0.01)
        assert not result._watchers
        assert await result == 0.2
        assert await pool.apply_async(square, (3,)) == 9

    def test_a_loop_closed_meanwhile_is_ignored(self, pool):
        result = pool.apply_async(nap, (0.2,))
        loop = asyncio.new_event_loop()

        async def main():
            await result

        waiting = loop.create_task(main())
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
        loop.close()
        assert result.get(30) == 0.2
        # never finished, and nobody is told
        waiting._log_destroy_pending = False
        waiting.get_coro().close()


class TestIterators:
    @pytest.mark.parametrize("chunksize", [1, 7])
    @in_loop
    async def test_results_come_in_order_or_as_they_come(self, pool, chunksize):
        ordered = [x async for x in pool.imap(square, range(100), chunksize)]
        assert ordered == [x * x for x in range(100)]
        found = [x async for x in pool.imap_unordered(square, range(100), chunksize)]
        assert sorted(found) == ordered

    @in_loop
    async def test_an_exception_is_raised_where_it_belongs_and_the_rest_follows(self, pool):
        results = pool.imap(fail_on_three, range(6))
        assert [await results.__anext__() for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="bad 3"):
            await results.__anext__()
        assert [x async for x in results] == [4, 5]
        with pytest.raises(StopAsyncIteration):
            await results.__anext__()

    @in_loop
    async def test_a_cancelled_wait_consumes_no_result(self, pool):
        results = pool.imap(nap, [0.2, 0.01])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(results.__anext__(), 0.01)
        assert [x async for x in results] == [0.2, 0.01]
