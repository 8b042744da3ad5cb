"""Objects that are collected when the interpreter has ended, and globals are None."""

import sys

from commands import ran

#: what C code keeps, as torch does, goes after the globals of modules that something keeps as well
PROGRAM = """
import builtins, gc, sys
import fiber

class Last:
    def __init__(self, kept):
        self.kept = kept
        self.globals = [vars(m) for name, m in sys.modules.items() if name.startswith("fiber")]
        self.nothing, self.collect = dict.fromkeys, gc.collect
        self.is_finalizing = sys.is_finalizing

    def __del__(self):
        for names in self.globals:
            names.update(self.nothing(names))
        self.kept.clear()
        self.collect()
        print("finalizing:", self.is_finalizing())

def main():
    process = fiber.Process(target=len, args=("a",))
    process.start()
    process.join()
    manager = fiber.Manager()
    with fiber.Pool(1) as pool, fiber.Executor(1) as executor:
        results = pool.imap(len, "ab")
        next(results)
        executor.submit(len, "a").result()
    builtins.last = Last(
        [process, manager, manager.dict(), pool, results, executor, fiber.Queue(), *fiber.Pipe()]
    )

if __name__ == "__main__":
    main()
"""


def test_they_say_nothing(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    found = ran([sys.executable, path], timeout=60)
    assert (found.stdout, found.stderr) == ("finalizing: True\n", "")
