"""Workers with a state that an initializer made, replaced after some tasks each."""

import os
from multiprocessing import Pool, current_process

state = {}


def prepare(name, factor):
    state["name"], state["factor"] = name, factor


def scaled(number):
    return state["name"], number * state["factor"], os.getpid()


def is_daemon(_):
    return current_process().daemon


if __name__ == "__main__":
    with Pool(2, initializer=prepare, initargs=("scale", 11)) as pool:
        print([result[:2] for result in pool.map(scaled, range(5))])
        print(set(pool.map(is_daemon, range(4))))
    with Pool(1, prepare, ("short lives", 2), maxtasksperchild=3) as pool:
        results = pool.map(scaled, range(9), chunksize=1)
        print([result[1] for result in results])
        print("workers:", len({result[2] for result in results}))
    print("here nothing changed:", state)
