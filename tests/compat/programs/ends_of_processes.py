"""The end of a process: its code, its atexit handlers and finalizers, what it has printed."""

import atexit
import io
import logging.handlers
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import weakref
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


def write_at_exit(folder, name):
    """Have the process that calls it write a file when it ends, by two ways, and a handler of logging."""
    atexit.register(told, f"{folder}/{name}", "atexit")
    weakref.finalize(Thing, told, f"{folder}/{name}", "finalize")
    if name == "task":
        target = logging.FileHandler(f"{folder}/logged")
        kept = logging.handlers.MemoryHandler(100, target=target)
        logging.getLogger("kept").addHandler(kept)
        logging.getLogger("kept").warning("kept until the end")


def exits_of_the_main_module():
    folder = os.environ["EXITS"] = tempfile.mkdtemp()
    for close in (False, True):
        if close:
            with Pool(1) as pool:
                pool.apply(write_at_exit, (folder, "task"))
                pool.close()
                pool.join()
        else:
            process = Process(target=write_at_exit, args=(folder, "task"))
            process.start()
            process.join()
        print({path.name: path.read_text().split("\n") for path in sorted(Path(folder).iterdir())})
    shutil.rmtree(folder)
    del os.environ["EXITS"]


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


if folder := os.environ.get("EXITS"):
    # in a child: as a module that makes a temporary folder does
    removed = tempfile.TemporaryDirectory(dir=folder)
    write_at_exit(folder, "main")

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    codes()
    handlers()
    exits_of_the_main_module()
    output_stays_in_order()
