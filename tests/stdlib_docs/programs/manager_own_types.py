"""Managers of the program's own: classes, what of them is exposed, iterators, modules."""

import operator
from multiprocessing.managers import BaseManager, BaseProxy


class Sums:
    def plus(self, a, b):
        return a + b

    def times(self, a, b):
        return a * b


class Friend:
    def one(self):
        return 1

    def two(self):
        return 2

    def _three(self):
        return 3


def countdown(start):
    yield from range(start, 0, -1)


class IteratorProxy(BaseProxy):
    _exposed_ = ("__next__",)

    def __iter__(self):
        return self

    def __next__(self):
        return self._callmethod("__next__")


def get_operator():
    return operator


class MyManager(BaseManager):
    pass


MyManager.register("Sums", Sums)
MyManager.register("Friend", Friend)
MyManager.register("Guarded", Friend, exposed=("two", "_three"))
MyManager.register("countdown", countdown, proxytype=IteratorProxy)
MyManager.register("operator", get_operator)


def fails(call):
    try:
        call()
    except AttributeError as error:
        return f"AttributeError: {error}"
    return "no error"


if __name__ == "__main__":
    with MyManager() as manager:
        sums = manager.Sums()
        print(sums.plus(4, 3), sums.times(7, 8))

        friend = manager.Friend()
        print(friend.one(), friend.two(), hasattr(friend, "_three"))
        print(sorted(friend._exposed_))

        guarded = manager.Guarded()
        print(guarded.two(), guarded._three(), hasattr(guarded, "one"))
        print(sorted(guarded._exposed_))

        print(list(manager.countdown(5)))
        module = manager.operator()
        print(module.add(3, 4), module.pow(2, 9), "pow" in module._exposed_)
        try:
            sums.plus("a", 1)
        except TypeError as error:
            print("TypeError:", error)

    manager = MyManager()
    manager.start()
    print(manager.Sums().plus(1, 1))
    manager.shutdown()
