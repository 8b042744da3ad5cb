"""The end of a process: its code, its atexit handlers and finalizers, what it has printed."""

import atexit
import io
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import Pool, Process, util
from pathlib import Path


def leave(how):
    # what the parent sees is its code; that of an error is printed, too
    sys.stderr = io.StringIO()
    if how == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    elif how == "at once":
        os._exit(9)
    elif how == "error":
        raise KeyError(how)
    else:
        sys.exit(how)


def codes():
    for how in (None, 0, 7, True, "a text", 256 + 3, "signal", "at once", "error"):
        process = Process(target=leave, args=(how,))
        process.start()
        process.join()
        print(repr(how), process.exitcode, process.is_alive())


def told(file, text):
    with open(file, "a") as stream:
        stream.write(text + "\n")


def finish(file):
    def note(text):
        util.Finalize(None, told, (file, text[0]), exitpriority=text[1])

    atexit.register(told, file, "atexit")
    for text in (("low", 1), ("high", 10), ("middle", 5)):
        note(text)
    kept = Thing()
    # without a priority it is not called at the end of a process
    util.Finalize(kept, told, (file, "never"))
    collected = Thing()
    util.Finalize(collected, told, (file, "collected"), exitpriority=100)
    del collected
    called = util.Finalize(None, told, (file, "once"), exitpriority=3)
    called()
    print(called.still_active(), called())
    thread = threading.Thread(target=told, args=(file, "thread"))
    thread.start()
    # neither a daemon nor joined by its program
    threading.Timer(0.2, told, (file, "timer")).start()
    thread.join()
    sys.stdout.write("printed without a line's end")


class Thing:
    pass


def handlers():
    file = str(Path("told").resolve())
    process = Process(target=finish, args=(file,))
    process.start()
    process.join()
    print()
    with open(file) as stream:
        print(process.exitcode, stream.read().split())
    Path(file).unlink()


def say(text, flush=False):
    print(text, flush=flush)


def output_stays_in_order():
    # of a parent whose output is a file or pipe, which is written when a buffer is full
    for number in range(3):
        print("parent", number)
        process = Process(target=say, args=(f"child {number}",))
        process.start()
        process.join()
    with Pool(1) as pool:
        pool.apply(say, ("worker", True))
    print("parent at its end")
    sys.stderr.flush()


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    codes()
    handlers()
    output_stays_in_order()
