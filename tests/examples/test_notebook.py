"""Fiber in a notebook: the example, cells that are interrupted, kernels that end."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import require

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
POOL = "import fiber, time\npool = fiber.Pool(2)\nprint(pool.map(abs, range(3)))"
AT_WORK = """
import threading
begun = fiber.Semaphore(0)
def slow(x):
    begun.release()
    time.sleep(600)
def say():
    for _ in range(2):
        begun.acquire()
    print("at work", flush=True)
"""

pytestmark = [pytest.mark.examples, pytest.mark.timeout(300)]


class Kernel:
    """A kernel whose cells are run one after another."""

    def __init__(self):
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager(kernel_name="python3")
        # the notebook's own process, as of an environment that was not installed as a kernel
        self.manager.kernel_spec.argv[0] = sys.executable
        # which keeps a kernel from taking what is written to its descriptors
        env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        self.manager.start_kernel(stderr=subprocess.DEVNULL, env=env)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(60)

    def run(self, code, *, interrupt_at=None, until=""):
        """Run a cell; what it printed, and the name of the error that ended it, if one did.

        Args:
            code: the cell.
            interrupt_at: text that it prints when it is to be interrupted.
            until: text that is waited for besides; what processes print comes as it comes.
        """
        cell = self.client.execute(code)
        text, error, is_over = "", None, False
        while not is_over or until not in text:
            message = self.client.get_iopub_msg(timeout=120)
            content = message["content"]
            if message["msg_type"] == "stream":
                text += content["text"]
            elif message["msg_type"] == "error":
                error = content["ename"]
            elif content.get("execution_state") == "idle":
                is_over = is_over or message["parent_header"].get("msg_id") == cell
            if interrupt_at is not None and interrupt_at in text:
                interrupt_at = None
                self.manager.interrupt_kernel()
        return text, error

    def processes(self):
        """The processes that it has started, however deep."""
        return psutil.Process(self.manager.provisioner.pid).children(recursive=True)

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel():
    require.need_module("ipykernel")
    require.need_module("jupyter_client")
    with contextlib.closing(Kernel()) as kernel:
        yield kernel


def outputs(notebook):
    return [
        output.get("text") or output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    ]


def test_the_example_gives_what_is_written_in_it():
    require.need_module("nbclient")
    require.need_module("ipykernel")
    import nbformat
    from nbclient import NotebookClient

    written = nbformat.read(EXAMPLE, as_version=4)
    found = nbformat.from_dict(written)
    NotebookClient(found, timeout=120, kernel_name="python3").execute()
    assert outputs(found) == outputs(written) != []


def test_the_interrupt_of_a_cell_ends_its_map_and_the_pool_lives(kernel):
    kernel.run(POOL)
    kernel.run(AT_WORK)
    for wait in ("pool.map(slow, range(9))", "for _ in pool.imap(slow, range(9)): pass"):
        _, error = kernel.run(
            f"threading.Thread(target=say).start()\n{wait}", interrupt_at="at work"
        )
        assert error == "KeyboardInterrupt"
        text, error = kernel.run("print(pool.map(abs, [-1, 2]))")
        assert (text.splitlines()[-1], error) == ("[1, 2]", None)


def test_functions_of_cells_may_be_defined_anew_and_processes_print_into_cells(kernel):
    kernel.run(POOL)
    for answer in ("first", "second"):
        kernel.run(f"def answer(x):\n    return {answer!r}")
        assert kernel.run("print(pool.map(answer, [1]))") == (f"['{answer}']\n", None)
    kernel.run("def say(queue):\n    print('from a process', flush=True)\n    queue.put(answer(1))")
    code = "queue = fiber.Queue()\nprocess = fiber.Process(target=say, args=(queue,))\n"
    code += "process.start()\nprint(queue.get())\nprocess.join()"
    text, error = kernel.run(code, until="from a process")
    assert sorted(text.splitlines()) == ["from a process", "second"]
    assert error is None


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_kernel_that_ends_leaves_nothing(kernel, signum):
    kernel.run(POOL)
    left = kernel.processes()
    assert len(left) >= 2
    os.kill(kernel.manager.provisioner.pid, signum)
    _, alive = psutil.wait_procs(left, timeout=60)
    assert alive == []
