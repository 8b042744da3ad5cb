"""A run that is not there: answers of a program with any number of workers, for the dashboard's page.

``python tests/support/simulated_run.py 1000`` serves the page of one, at a port that may stand behind. The
line ``end`` on standard input ends the runs, ``begin`` and an id begin one.
"""

import random
import sys
import threading
import time

from fiber._config.settings import DASHBOARD
from fiber._dashboard.server import Run, Server
from fiber.exceptions import FiberError
from fiber.model import Timing

FUNCTIONS = ("simulate", "evaluate", "reduce_gradients")
TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line 31, in simulate
    return step(case, mass=case.mass)
  File "/home/me/train.py", line 12, in step
    raise ValueError("negative mass")
ValueError: negative mass"""
WHY = "0/12 nodes are available: 12 Insufficient cpu."


class Simulated:
    """Answers of a program, as ``Asker`` returns them.

    Args:
        workers: how many it has.
        hosts: that they are spread over.
        waiting: so many of them wait for a place.
        slow: so many run a task for much longer than usual.
        failing: so many of 1,000 tasks fail.
        seed: of what happens.
        ident: id of the run.
    """

    def __init__(
        self, workers=8, hosts=2, *, waiting=1, slow=1, failing=2, seed=1, ident="5b7d21c0"
    ):
        self.has_ended = False
        self._random = random.Random(seed)
        self.ident = ident
        self._began = time.time()
        self._done = self._failed = 0
        self._errors = []
        self._failing = failing
        self._total = workers * 4000
        self._waiting = set(range(workers - waiting, workers))
        self._slow = set(self._random.sample(range(workers - waiting), slow))
        self._workers = [
            {
                "name": f"PoolWorker-{number + 1}",
                "host": "" if number in self._waiting else f"node-{number * hosts // workers + 1}",
                "pid": None if number in self._waiting else 40000 + number,
                "job": f"{number + 0x5B7D0000:08x}",
            }
            for number in range(workers)
        ]
        self._tasks = [
            (self._random.choice(FUNCTIONS), self._began - self._random.uniform(0, 1))
            for _ in range(workers)
        ]

    def ask(self, what, **facts):
        """Return an answer."""
        if self.has_ended:
            msg = "the program has ended"
            raise FiberError(msg)
        return {"status": self._status, "timeline": self._timeline, "log": self._log}[what](**facts)

    def close(self):
        """End it."""

    def _timeline(self):
        now, spans = time.time(), []
        for number, worker in enumerate(self._workers):
            if number in self._waiting or number in self._slow:
                continue
            function, begin = self._tasks[number]
            while (end := begin + self._random.uniform(0.2, 0.9)) < now:
                # the first one fails for sure
                is_first = self._failing and not self._done
                failed = is_first or self._random.randrange(1000) < self._failing
                if failed:
                    self._fail(worker, function, end)
                spans.append(["pool-1", worker["name"], function, begin, end, 1, int(failed)])
                self._done += 1
                begin = end + 0.01
                if self._random.random() < 0.1:
                    function = self._random.choice(FUNCTIONS)
            self._tasks[number] = function, begin
        return {"now": now, "missing": 0, "spans": spans}

    def _fail(self, worker, function, when):
        self._failed += 1
        item = self._random.randrange(100_000)
        self._errors.append(
            {
                "function": function,
                "item": item,
                "error": "ValueError: negative mass",
                "when": when,
                "traceback": TRACEBACK,
                "worker": worker["name"],
                "replay": f"5b7d21c0-{self._failed}",
            }
        )
        del self._errors[:-8]

    def _status(self):
        now = time.time()
        workers = []
        for number, worker in enumerate(self._workers):
            is_waiting, is_slow = number in self._waiting, number in self._slow
            function, begin = self._tasks[number]
            seconds = (
                0.0 if is_waiting else max(0.0, now - (self._began - 30 if is_slow else begin))
            )
            workers.append(
                {
                    **worker,
                    "state": "waiting" if is_waiting else "busy",
                    "reason": WHY if is_waiting else "",
                    "running": 0 if is_waiting else 2,
                    "function": "" if is_waiting else function,
                    "seconds": round(seconds, 3),
                    "usual": None if is_waiting else 0.55,
                    "is_slow": is_slow,
                    "done": 4000 + number,
                    "lately": None if is_waiting else 0.55,
                    "others": None,
                    "memory": None if is_waiting else 180_000_000 + 3_000_000 * (number % 17),
                }
            )
        running = 2 * (len(workers) - len(self._waiting))
        pool = {
            "name": "pool-1",
            "wanted": len(workers),
            "ready": len(workers) - len(self._waiting),
            "reason": WHY if self._waiting else "",
            "waiting": max(0, self._total - self._done - running),
            "running": running,
            "done": self._done,
            "failed": self._failed,
            "retried": 0,
            "workers": workers,
            "errors": list(self._errors),
        }
        return {
            "run": self.ident,
            "backend": "simulated",
            "pid": 4242,
            "program": ["/home/me/train.py", "--cases", "4000"],
            "pools": [pool],
            "processes": [],
            "queues": [{"number": 3, "length": 12}],
            "host": "login-1",
            "memory": 310_000_000,
        }

    def _log(self, job, lines):
        return {"job": job, "lines": [f"step {number} of {job}" for number in range(lines)]}


def run_of(simulated, ident="5b7d21c0", age=185):
    """A run for the page's server, that began so many seconds ago."""
    return Run(
        id=ident,
        program=("/home/me/train.py", "--cases", "4000"),
        backend="simulated",
        created=time.time() - age,
        connect=lambda: simulated,
    )


def _obey(runs):
    """End and begin runs as the lines of standard input say."""
    for line in sys.stdin:
        word, *ident = line.split()
        if word == "end":
            for one in runs:
                one.connect().has_ended = True
            runs.clear()
        else:
            simulated = Simulated(ident=ident[0], waiting=0, slow=0, failing=0)
            runs.insert(0, run_of(simulated, *ident, age=0))


if __name__ == "__main__":
    size = int(sys.argv[1])
    runs = [run_of(Simulated(size, max(1, size // 64), waiting=max(1, size // 100)))]
    threading.Thread(target=_obey, args=(runs,), daemon=True).start()
    address = f"127.0.0.1:{sys.argv[2]}" if sys.argv[2:] else DASHBOARD
    server = Server(lambda: list(runs), address, Timing())
    print(server.url, flush=True)
    server.run()
