"""tqdm: bars over the iterators of a pool, and a bar of each worker's own under a shared lock."""

import io
from multiprocessing import Pool, RLock

from tqdm import tqdm


def triple(number):
    return number * 3


def with_a_bar(number):
    silent = io.StringIO()
    return sum(tqdm(range(number), position=number % 2, file=silent))


def main():
    drawn = io.StringIO()
    with Pool(2) as pool:
        results = tqdm(pool.imap_unordered(triple, range(50)), total=50, file=drawn, ascii=True)
        print(sorted(results)[-3:])
        print(list(tqdm(pool.imap(triple, range(5), chunksize=2), total=5, file=drawn)))
        with tqdm(total=4, file=drawn) as bar:
            waited = [
                pool.apply_async(triple, (i,), callback=lambda _: bar.update()) for i in range(4)
            ]
            print([one.get() for one in waited])
    print("50/50" in drawn.getvalue(), "5/5" in drawn.getvalue(), "100%" in drawn.getvalue())

    tqdm.set_lock(RLock())
    with Pool(2, initializer=tqdm.set_lock, initargs=(tqdm.get_lock(),)) as pool:
        print(pool.map(with_a_bar, range(6)))


if __name__ == "__main__":
    main()
