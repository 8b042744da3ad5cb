"""Short work for pools under fire, in a module that a fresh worker imports in no time."""


def work(n: int) -> int:
    """About 20 µs, so that a map of many takes long enough to be hit several times."""
    for _ in range(200):
        pass
    return (n * 2654435761) % 2**32
