"""Managers of the program's own: classes, what of them is exposed, iterators, modules."""

import operator
from multiprocessing.managers import BaseManager, BaseProxy


class Friend:
    def plus(self, a, b):
        return a + b

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


MyManager.register("Friend", Friend)
MyManager.register("Guarded", Friend, exposed=("two", "_three"))
MyManager.register("countdown", countdown, proxytype=IteratorProxy)
MyManager.register("operator", get_operator)


if __name__ == "__main__":
    with MyManager() as manager:
        friend = manager.Friend()
        print(friend.plus(4, 3), friend.two(), hasattr(friend, "_three"))
        print(sorted(friend._exposed_))
        try:
            friend.plus("a", 1)
        except TypeError as error:
            print("TypeError:", error)

        guarded = manager.Guarded()
        print(guarded.two(), guarded._three(), hasattr(guarded, "plus"))
        print(sorted(guarded._exposed_))

        print(list(manager.countdown(5)))
        module = manager.operator()
        print(module.add(3, 4), module.pow(2, 9), "pow" in module._exposed_)
