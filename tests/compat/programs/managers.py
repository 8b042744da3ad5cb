"""A manager's dict, list and others, which children change, and what their proxies are."""

from multiprocessing import Manager, Process


def change(mapping, sequence):
    mapping[7] = "seven"
    mapping["eight"] = 8
    mapping[0.5] = None
    sequence.reverse()


def wait_and_count(event, lock, state):
    event.wait()
    for _ in range(20):
        with lock:
            state.count += 1


def share_with_children(manager):
    mapping, sequence = manager.dict(), manager.list(range(6))
    process = Process(target=change, args=(mapping, sequence))
    process.start()
    process.join()
    print(mapping, sequence)
    print(sorted(mapping.keys(), key=str), len(sequence), sequence[1:3], 3 in sequence)

    state = manager.Namespace(count=0)
    event, lock = manager.Event(), manager.Lock()
    processes = [Process(target=wait_and_count, args=(event, lock, state)) for _ in range(3)]
    for process in processes:
        process.start()
    event.set()
    for process in processes:
        process.join()
    print(state.count, event.is_set())


def make_others(manager):
    queue = manager.Queue(maxsize=2)
    queue.put("a")
    queue.put("b")
    print(queue.full(), queue.get(), queue.qsize())
    value, array = manager.Value("i", 3), manager.Array("d", [1, 2, 3])
    value.value += 4
    array[0] = 9.5
    print(value.value, array[0], array[1:])
    space = manager.Namespace()
    space.x, space.y = 12, "words"
    space._z = 3.5  # an attribute of the proxy
    print(space, space.x, hasattr(space, "gone"))
    with manager.Pool(2) as pool:
        print(pool.map(abs, [-5, 6]))


def look_at_proxies(manager):
    squares = manager.list([i * i for i in range(7)])
    print(squares, str(squares))
    print(repr(squares).startswith("<ListProxy object, typeid 'list' at 0x"))
    print(squares[4], squares == [0, 1, 4], squares[:] == [0, 1, 4, 9, 16, 25, 36])
    squares += [1, 2]
    squares.extend([3])
    squares.sort(reverse=True)
    print(squares, type(squares).__name__, squares.index(3), squares.count(1))
    print(sorted(manager.dict(a=1, b=2).items()), manager.dict({"k": [1]}).copy())
    for find in (lambda: squares[99], lambda: manager.dict()["nothing"]):
        try:
            find()
        except LookupError as error:
            print(f"{type(error).__name__}: {error}")


def nest_them(manager):
    outer, inner = manager.list(), manager.list()
    outer.append(inner)
    inner.append("hello")
    print(len(outer), len(outer[0]), outer[0][0], str(outer[0]))

    rows = manager.list([manager.dict() for _ in range(2)])
    rows[0]["a"], rows[1]["c"] = 1, 3
    print(rows[0], rows[1], rows[1].values())

    holder = manager.list([{}])
    plain = holder[0]
    plain["x"] = 1
    print(holder)
    holder[0] = plain
    print(holder)


if __name__ == "__main__":
    with Manager() as manager:
        share_with_children(manager)
        make_others(manager)
        look_at_proxies(manager)
        nest_them(manager)
