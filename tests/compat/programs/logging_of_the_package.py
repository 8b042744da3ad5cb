"""The package's logger, which is told what processes do."""

import logging
import os
import sys
from multiprocessing import Process, get_logger, log_to_stderr, set_start_method


def do_nothing():
    get_logger().warning("so far")


if __name__ == "__main__":
    # others of the standard library have something to say themselves
    set_start_method("fork")
    os.dup2(1, 2)
    logger = log_to_stderr()
    print(logger is get_logger(), logger.name, logger.level)
    sys.stdout.flush()
    logger.setLevel(logging.INFO)
    logger.warning("doomed")
    logger.debug("not heard")
    process = Process(target=do_nothing)
    process.start()
    process.join()
    print(process.exitcode)
    logger.setLevel(logging.ERROR)
