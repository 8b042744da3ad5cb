"""The methods of a process: ended, killed, closed, misused, and with exit codes of its own."""

import signal
import sys
import time
from multiprocessing import Process


def sleep_long(started=None):
    time.sleep(300)


def leave(code):
    sys.exit(code)


if __name__ == "__main__":
    process = Process(target=sleep_long)
    print("not started:", process.is_alive(), process.exitcode)
    process.start()
    print("started:", process.is_alive(), process.exitcode)
    process.join(0.05)
    print("still there:", process.is_alive())
    try:
        process.close()
    except ValueError as error:
        print("ValueError:", error)
    process.terminate()
    process.join()
    print("terminated:", process.is_alive(), process.exitcode == -signal.SIGTERM)
    process.close()
    try:
        process.is_alive()
    except ValueError as error:
        print("ValueError:", error)

    process = Process(target=sleep_long, daemon=True)
    process.start()
    process.kill()
    process.join()
    print("killed:", process.exitcode == -signal.SIGKILL, process.daemon)

    for code in (0, 7, None):
        process = Process(target=leave, args=(code,))
        process.start()
        process.join()
        print("left with", code, "->", process.exitcode)
    try:
        process.start()
    except AssertionError as error:
        print("AssertionError:", error)
