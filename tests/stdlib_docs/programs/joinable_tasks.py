"""A queue that knows when all that was put into it has been done."""

from multiprocessing import JoinableQueue, Process, Queue


def work(tasks, done):
    while True:
        number = tasks.get()
        if number is None:
            tasks.task_done()
            return
        done.put(number**2)
        tasks.task_done()


if __name__ == "__main__":
    tasks, done = JoinableQueue(), Queue()
    workers = [Process(target=work, args=(tasks, done)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for number in range(12):
        tasks.put(number)
    tasks.join()
    print("all is done:", sorted(done.get() for _ in range(12)))
    for _ in workers:
        tasks.put(None)
    tasks.join()
    for worker in workers:
        worker.join()
    print([worker.exitcode for worker in workers])
    try:
        tasks.task_done()
    except ValueError as error:
        print("ValueError:", error)
