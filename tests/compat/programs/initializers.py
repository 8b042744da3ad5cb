"""Initializers of pools: in each worker once, before its first task."""

import multiprocessing
from multiprocessing import Barrier, Pool
from pathlib import Path

_state = []


def begin(file, *words):
    _state.extend(words)
    with open(file, "a") as stream:
        stream.write("began\n")


def count(file):
    with open(file) as stream:
        found = len(stream.readlines())
    Path(file).unlink()
    return found


def meet(_):
    # so that no worker does all of it before the other one is there
    _state[0].wait()
    return tuple(_state[1:])


def before_the_first_task(file):
    with Pool(2, begin, (file, Barrier(2), "a", 1)) as pool:
        print(set(pool.map(meet, range(2), 1)), _state)
        pool.close()
        pool.join()
    print("workers:", count(file))


def of_a_wrong_kind():
    for words in ((1, "no function"), (1, None, (), 0)):
        try:
            Pool(*words)
        except (TypeError, ValueError) as error:
            print(type(error).__name__)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    before_the_first_task(str(Path("initialized").resolve()))
    of_a_wrong_kind()
