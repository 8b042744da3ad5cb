"""What is closed, ended or released: queues, connections, pools, processes, barriers; what they raise."""

import multiprocessing
import queue
import time
from multiprocessing import JoinableQueue, Pipe, Pool, Process, Queue, SimpleQueue, connection


def outcome(call, *args, **kwargs):
    try:
        found = call(*args, **kwargs)
    except Exception as error:
        kinds = ValueError, OSError, EOFError, AssertionError, RuntimeError, OverflowError
        kinds += TypeError, queue.Empty
        return next((kind.__name__ for kind in kinds if isinstance(error, kind)), repr(error))
    return (
        repr(found) if found is None or type(found) in {bool, int, list} else type(found).__name__
    )


def queues():
    closed = Queue()
    closed.put(1)
    print(closed.get(), outcome(closed.join_thread))
    closed.close()
    closed.join_thread()
    closed.close()
    for name, args in {"put": (2,), "get": (), "get_nowait": (), "put_nowait": (1,)}.items():
        print("Queue", name, outcome(getattr(closed, name), *args))
    print("Queue empty", outcome(closed.empty))
    simple = SimpleQueue()
    simple.close()
    for name, args in {"put": (2,), "get": (), "empty": (), "close": ()}.items():
        print("SimpleQueue", name, outcome(getattr(simple, name), *args))
    tasks = JoinableQueue()
    tasks.put(1)
    tasks.close()
    # it asks for no get() before
    print(outcome(tasks.get), tasks.task_done(), tasks.join(), outcome(tasks.task_done))


def connections():
    reader, writer = Pipe(duplex=False)
    print(reader.readable, reader.writable, writer.readable, writer.writable)
    writer.send("last")
    writer.close()
    print(reader.poll(), reader.recv(), reader.poll(), outcome(reader.recv), reader.closed)
    reader.close()
    reader.close()
    for name, args in {"recv": (), "poll": (), "recv_bytes": (), "fileno": ()}.items():
        print("Connection", name, outcome(getattr(reader, name), *args))
    print("Connection of a child's", outcome(Process(target=len, args=(reader,)).start))
    one, other = Pipe()
    other.close()
    print(outcome(one.recv), outcome(one.poll), outcome(one.send_bytes, b"x", -1))
    one.close()
    print(outcome(connection.wait, [], 0), outcome(one.__enter__))


def pools():
    pool = Pool(1)
    print(pool.apply(abs, (-1,)))
    running = pool.map_async(abs, [-2, -3])
    pool.close()
    for name, args in {"apply": (abs, (1,)), "map": (abs, [1]), "imap": (abs, [1])}.items():
        print("Pool", name, outcome(getattr(pool, name), *args))
    pool.join()
    print(running.get(), outcome(pool.close), outcome(pool.terminate), outcome(pool.join))
    print(outcome(pool.__enter__))


def processes():
    process = Process(target=time.sleep, args=(600,))
    for name in ("join", "terminate", "close"):
        print("not started:", name, outcome(getattr(process, name)))
    process = Process(target=time.sleep, args=(600,))
    process.start()
    print(outcome(process.start), outcome(process.close), process.is_alive())
    print(outcome(process.join, 0.01), process.exitcode)
    process.terminate()
    process.join()
    print(process.exitcode, process.is_alive(), connection.wait([process.sentinel], 5) != [])
    process.close()
    for name in ("exitcode", "pid", "sentinel"):
        print("closed:", name, outcome(lambda name=name: getattr(process, name)))
    for name in ("is_alive", "join", "start", "terminate", "close"):
        print("closed:", name, outcome(getattr(process, name)))


def synchronization():
    bad_values = (-1, "a", 1.5, 2**40)
    print([outcome(multiprocessing.Semaphore, value) for value in bad_values])
    barrier = multiprocessing.Barrier(2)
    barrier.abort()
    print(outcome(barrier.wait), barrier.broken, barrier.n_waiting, barrier.parties)
    barrier.reset()
    print(barrier.broken, outcome(barrier.wait, 0.01), barrier.broken)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    queues()
    connections()
    pools()
    processes()
    synchronization()
