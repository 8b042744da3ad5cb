"""logging.handlers: records of many processes, written by a listener in one."""

import logging
import logging.handlers
import sys
from multiprocessing import Process, Queue, current_process


def work(records, number):
    root = logging.getLogger()
    root.handlers[:] = [logging.handlers.QueueHandler(records)]
    root.setLevel(logging.INFO)
    log = logging.getLogger(f"part.{number}")
    log.debug("nobody hears this")
    for step in range(3):
        log.info("step %d of %s", step, current_process().name)
    try:
        int("no number")
    except ValueError:
        log.exception("it went wrong")


class Collected(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []
        self.setFormatter(logging.Formatter("%(processName)s %(name)s %(levelname)s %(message)s"))

    def emit(self, record):
        self.lines.append(self.format(record))


def main():
    records = Queue()
    collected = Collected()
    errors = logging.StreamHandler(sys.stdout)
    errors.setLevel(logging.CRITICAL)
    listener = logging.handlers.QueueListener(
        records, collected, errors, respect_handler_level=True
    )
    listener.start()
    processes = [
        Process(target=work, args=(records, number), name=f"worker {number}") for number in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    listener.stop()
    for name in ("worker 0", "worker 1", "worker 2"):
        for line in collected.lines:
            if line.startswith(name):
                kept = [part for part in line.splitlines() if "File" not in part]
                print("\n".join(kept))
    print(len(collected.lines))


if __name__ == "__main__":
    main()
