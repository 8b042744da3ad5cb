"""Joining a job that was ended before it was up returns, also on hosts that confirm nothing."""

import subprocess
import sys
import textwrap

import pytest

BEGIN = """
    import os
    import time
    from pathlib import Path

    import fiber
    from fiber._config.settings import Config
    from fiber._runtime import runtime
    from fiber.model import Timing
    from fiber.testing.fake_remote import AWAY

    if __name__ == "__main__":
        Config.timing = Timing(unconfirmed=1.0)
        platform = runtime.current().backend.platform
        platform.unconfirmed = None
"""
PROGRAMS = {
    "a process that was killed": """
        with platform.lost_host():
            process = fiber.Process(target=print)
            process.start()
        process.kill()
        process.join()
        print(process.exitcode, process._popen.status.reason)
    """,
    "a daemon that the interpreter ends": """
        with platform.lost_host():
            fiber.Process(target=print, daemon=True).start()
        print("1 NODE_LOST")
    """,
    "a daemon whose platform cannot be asked at the end": """
        with platform.lost_host():
            fiber.Process(target=print, daemon=True).start()
        Path(os.environ["FIBER_FAR_FOLDER"], AWAY).touch()
        print("1 NODE_LOST")
    """,
    "workers of a pool that is closed": """
        with fiber.Pool(1) as pool:
            pool.apply(abs, (-1,))
            with platform.lost_host():
                pool.resize(3)
                while len(fiber.active_children()) < 3:
                    time.sleep(0.01)
            pool.close()
            pool.join()
        print("1 NODE_LOST")
    """,
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("what", PROGRAMS)
def test_a_program_ends(remote_host, tmp_path, what):
    script = tmp_path / "program.py"
    text = textwrap.dedent(BEGIN) + textwrap.indent(textwrap.dedent(PROGRAMS[what]), "    ")
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, script],
        env={**remote_host.environ(), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        # an interpreter alone takes half of that on a busy machine
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1 NODE_LOST\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert "has not confirmed that" in done.stderr
