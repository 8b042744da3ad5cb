"""Who is who: names, process ids, the module in which a child finds its function."""

import os
from multiprocessing import Event, Process, active_children, current_process, parent_process


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


if __name__ == "__main__":
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
