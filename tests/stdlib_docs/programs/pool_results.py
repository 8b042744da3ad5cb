"""Results of a pool that are waited for in every way that there is."""

import time
from multiprocessing import Pool, TimeoutError  # noqa: A004


def fifth_power(number):
    return number**5


if __name__ == "__main__":
    with Pool(processes=2) as pool:
        result = pool.apply_async(fifth_power, (2,))
        print(result.get(timeout=60), result.ready(), result.successful())
        print(pool.map(fifth_power, range(6)))

        lazily = pool.imap(fifth_power, range(7))
        print(next(lazily))
        print(next(lazily))
        print(lazily.next(timeout=60))
        print(list(lazily))

        late = pool.apply_async(time.sleep, (200,))
        late.wait(0.1)
        print(late.ready())
        try:
            late.successful()
        except ValueError:
            print("nobody knows yet")
        try:
            print(late.get(timeout=0.1))
        except TimeoutError as error:
            print(type(error).__name__)

        heard = []
        pool.apply_async(fifth_power, (3,), callback=heard.append).wait()
        pool.map_async(fifth_power, [1, 2], callback=heard.append).wait()
        pool.apply_async(
            int, ("no number",), error_callback=lambda error: heard.append(type(error))
        ).wait()
        while len(heard) < 3:
            time.sleep(0.01)
        print(heard)
