"""Start methods: chosen for the program, or for one context."""

import multiprocessing as mp


def say(queue):
    queue.put("started by " + mp.get_start_method())


if __name__ == "__main__":
    mp.freeze_support()
    mp.set_start_method("spawn")
    queue = mp.Queue()
    process = mp.Process(target=say, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
    try:
        mp.set_start_method("forkserver")
    except RuntimeError as error:
        print("RuntimeError:", error)
    try:
        mp.get_context("threads")
    except ValueError as error:
        print("ValueError:", error)

    print(sorted(mp.get_all_start_methods()) == ["fork", "forkserver", "spawn"])
    for method in ("spawn", "forkserver"):
        context = mp.get_context(method)
        queue = context.JoinableQueue()
        process = context.Process(target=say, args=(queue,))
        process.start()
        print(method, type(context).__name__, type(process).__name__, queue.get())
        print(queue.task_done(), queue.join())
        process.join()
        with context.Pool(2) as pool:
            print(pool.map(abs, [-1, -2]))
    try:
        context.set_start_method("fork")
    except ValueError as error:
        print("ValueError:", error)
    mp.set_start_method("forkserver", force=True)
    print(mp.get_start_method())
