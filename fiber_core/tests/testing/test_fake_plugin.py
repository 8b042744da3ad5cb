"""The fake backend runs the whole of Fiber, found by its entry point as any other."""

import os
import subprocess
import sys
import textwrap

from distributions import Site

PROGRAM = """
    import os
    import pathlib
    import sys

    import fiber


    def square(number):
        return number * number


    def die_once(number):
        mark = pathlib.Path(sys.argv[1])
        if number == 3 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)
        return number


    if __name__ == "__main__":
        assert fiber.get_backend().name == "fake"
        with fiber.Pool(2) as pool:
            assert pool.map(square, range(10)) == [n * n for n in range(10)]
            assert pool.map(die_once, range(10)) == list(range(10))
        process = fiber.Process(target=os._exit, args=(7,))
        process.start()
        process.join()
        assert process.exitcode == 7
"""


def test_a_pool_runs_on_it_and_survives_a_killed_worker(tmp_path):
    site = Site(tmp_path / "site")
    site.add("fiber-fake", entry_points={"fake": "fiber.testing.fake_plugin"})
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    path = os.pathsep.join(filter(None, [str(site.folder), os.environ.get("PYTHONPATH")]))

    done = subprocess.run(
        [sys.executable, "program.py", "mark"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "FIBER_BACKEND": "fake"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "mark").exists()
