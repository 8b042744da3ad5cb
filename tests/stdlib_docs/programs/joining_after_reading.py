"""Much in a queue is read before its writer is joined; a pool's function is importable."""

from multiprocessing import Process, Queue, SimpleQueue


def write(queue):
    queue.put("X" * 1_500_000)


def close_politely(queue, simple):
    queue.put("said")
    queue.close()
    queue.join_thread()
    simple.put("and done")
    simple.close()


if __name__ == "__main__":
    queue = Queue()
    process = Process(target=write, args=(queue,))
    process.start()
    print(len(queue.get()))
    process.join()
    print(process.exitcode)

    simple = SimpleQueue()
    process = Process(target=close_politely, args=(queue, simple))
    process.start()
    print(queue.get(), simple.get(), simple.empty(), queue.empty())
    process.join()
    queue.close()
    try:
        queue.put("too late")
    except ValueError as error:
        print("ValueError:", str(error).endswith("is closed"))
