"""Processes: who they are, how they are ended, and classes of the program's own."""

import os
import signal
import time
from multiprocessing import Event, Process, Queue, active_children, current_process, parent_process


def describe(title, master):
    print(title)
    print("  runs as", current_process().name)
    print("  in a process of its own:", os.getpid() != master)
    print("  and knows its id:", current_process().pid == os.getpid() == current_process().ident)
    parent = parent_process()
    print("  its parent is the program:", parent is not None and parent.pid == master)
    print("  which is there:", parent is not None and parent.is_alive())
    print("  and named", parent.name if parent else None, flush=True)


def describe_child(master, seen):
    describe("a child", master)
    # until its parent has looked at it
    seen.wait()


def identify():
    describe("the program", os.getpid())
    seen = Event()
    child = Process(target=describe_child, args=(os.getpid(), seen), name="inspector")
    print("before its start:", child.pid, child.is_alive(), child.exitcode, flush=True)
    child.start()
    children = active_children()
    seen.set()
    child.join()
    print("there was a child:", [one.name for one in children])
    print("after its end:", child.is_alive(), child.exitcode, active_children())
    print("numbered:", Process(target=describe).name, Process(target=describe).name)


def fails(call):
    try:
        call()
    except (AssertionError, ValueError) as error:
        print(f"{type(error).__name__}: {error}")


def end_early():
    process = Process(target=time.sleep, args=(300,))
    process.start()
    fails(process.close)
    process.terminate()
    process.join()
    fails(process.start)
    process.close()
    fails(process.is_alive)

    process = Process(target=time.sleep, args=(300,), daemon=True)
    process.start()
    process.kill()
    process.join()
    print("killed:", process.exitcode == -signal.SIGKILL, process.daemon)


class Adder(Process):
    def __init__(self, numbers, answers):
        super().__init__(name=f"adder of {len(numbers)}")
        self.numbers = numbers
        self.answers = answers

    def run(self):
        self.answers.put((self.name, sum(self.numbers)))


def subclass():
    answers = Queue()
    adders = [Adder(list(range(size)), answers) for size in (10, 100, 1000)]
    for adder in adders:
        adder.start()
    for name, total in sorted(answers.get() for _ in adders):
        print(name, total)
    for adder in adders:
        adder.join()
    print([adder.exitcode for adder in adders])


if __name__ == "__main__":
    identify()
    end_early()
    subclass()
