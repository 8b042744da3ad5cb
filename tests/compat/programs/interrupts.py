"""Ctrl-C: it reaches a program and its children, each of which may end as it likes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing import Process


def wait_in_turns(go_on):
    # a signal that comes right before a long wait would be noticed after it
    while go_on():
        time.sleep(0.05)


def say(text):
    # whole, whatever others write meanwhile
    os.write(1, f"{text}\n".encode())


def child(code):
    try:
        say("ready")
        wait_in_turns(lambda: True)
    except KeyboardInterrupt:
        say("child interrupted")
        sys.exit(code)


def ignorant():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    say("ready")
    time.sleep(1)


def parent(catches):
    targets = [(child, (7,)), (child, (8,)), (ignorant, ())]
    processes = [Process(target=target, args=args) for target, args in targets]
    try:
        for process in processes:
            process.start()
        # a child may be ready before start() has returned
        say("ready")
        wait_in_turns(lambda: any(process.is_alive() for process in processes))
    except KeyboardInterrupt:
        for process in processes:
            process.join()
        say(f"parent interrupted {[process.exitcode for process in processes]}")
        if not catches:
            raise


def main():
    for way in ("catches", "ends"):
        command = [sys.executable, __file__, way]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, start_new_session=True, **pipes) as program:
            for _ in range(4):
                print(program.stdout.readline().strip())
            os.killpg(program.pid, signal.SIGINT)
            told, error = program.communicate()
        print(sorted(told.splitlines()), error.splitlines()[-1:], program.returncode)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        multiprocessing.set_start_method("spawn")
        parent(sys.argv[1] == "catches")
    else:
        main()
