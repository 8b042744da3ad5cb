"""Objects that come back from a child through a queue."""

from multiprocessing import Process, Queue


def fill(queue):
    queue.put({"answer": 6 * 7, "missing": None, "words": ["a", "b"]})


if __name__ == "__main__":
    queue = Queue()
    process = Process(target=fill, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
