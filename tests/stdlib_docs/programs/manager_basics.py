"""A manager's dict, list and others, which children change."""

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


if __name__ == "__main__":
    with Manager() as manager:
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

        queue = manager.Queue(maxsize=2)
        queue.put("a")
        queue.put("b")
        print(queue.full(), queue.get(), queue.qsize())
        value, array = manager.Value("i", 3), manager.Array("d", [1, 2, 3])
        value.value += 4
        array[0] = 9.5
        print(value.value, array[0], array[1:])
        with manager.Pool(2) as pool:
            print(pool.map(abs, [-5, 6]))
    try:
        mapping["late"] = 1
    except Exception as error:
        print("gone:", isinstance(error, OSError | EOFError))
