"""First code of a worker process: join the run, fetch the work, become the process.

Called in a child that a supervisor forked (``entry`` of a ``JobSpec``), or as ``python -m
fiber._runtime.bootstrap`` with its instructions at the place that ``FIBER_BOOTSTRAP`` names. Where the
work comes with these, the parent is dialled when it is first needed, which may be never.
"""

from __future__ import annotations

import os
import signal
import sys
import types
from collections.abc import Callable
from typing import Any

from fiber._agent.instructions import Instructions, dial
from fiber._base import entry_points, values
from fiber._launch.module_server import ParentFinder
from fiber._launch.preparation import UnguardedMainError
from fiber._runtime.inspection import StackFile
from fiber._wire import codec
from fiber._wire.descriptors import OwnedDescriptors
from fiber._wire.frames import Kind
from fiber._wire.handshake import PICKLER, Hello, disagreement
from fiber._wire.link import Link
from fiber.exceptions import StartError

# cached by the function: a supervisor that imports this module asks once for all its forks
entry_points.version(PICKLER)


def main(private: bytes, index: int) -> int:
    """Run process ``index`` of a job; returns its exit code."""
    instructions = Instructions.decode(private)
    hello = Hello.mine(instructions.ident_of(index))
    work, sentinel = instructions.work, _watched(instructions.parent, hello)
    if work is not None and sentinel is not None:
        return _become(memoryview(work), None, sentinel, instructions, hello, index)
    # a parent of other versions refuses this process, in its own words
    link = dial(instructions, hello)
    try:
        body = _fetched(link, hello) if work is None else memoryview(work)
        sentinel = _watched(link.peer, hello)
        sentinel = link.end_fd if sentinel is None else sentinel
        return _become(body, link, sentinel, instructions, hello, index)
    finally:
        link.close()


def _watched(parent: Hello | None, mine: Hello) -> int | None:
    """Descriptor that is readable once the parent has ended; None where there is none, and for strangers."""
    if parent is None or parent.host != mine.host or disagreement(parent, mine) is not None:
        return None
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        descriptor: int = os.pidfd_open(parent.pid)
    except OSError:
        # gone already, or the kernel has none
        return None
    return descriptor


def _fetched(link: Link, hello: Hello) -> memoryview:
    """Ask the parent for the work."""
    link.send(Kind.CALL, 0, 1)
    answer = link.receive()
    if answer is None or answer.kind is not Kind.REPLY:
        # one line: where the call that started it was interrupted, its traceback is the one to read
        msg = (
            f"fiber: process {hello.ident} does not begin: its parent at {link.url} has given it up"
        )
        raise SystemExit(msg)
    return answer.body


def _become(
    work: memoryview,
    link: Link | None,
    sentinel: int,
    instructions: Instructions,
    hello: Hello,
    index: int,
) -> int:
    import atexit
    from multiprocessing import util

    from fiber._runtime.runtime import Runtime

    payload: dict[str, Any] = codec.loads(work)
    if payload["ignores_interrupts"]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    fresh_main()
    # since 3.13 the stdlib leaves its own to the start method; the program's are called before it
    atexit.unregister(vars(util)["_exit_function"])
    atexit.register(vars(util)["_exit_function"])
    runtime = Runtime.of_child(
        instructions, config=_config(payload), parent_link=link, hello=hello, index=index
    )
    runtime.own(StackFile(runtime.directory, runtime.ident))
    if instructions.remote:
        _prepare_remote(runtime, runtime.parent_url, payload)
    else:
        ask = lambda question: _ask_parent(runtime, question)  # noqa: E731 - used once
        sys.meta_path.append(ParentFinder(payload["modules"], ask))
        prepare(payload["preparation"])
    process = codec.loads(memoryview(payload["process"]))
    runtime.process = process
    if runtime.config.debugger:
        # by name: few programs stop in a worker
        describe = getattr(process, "describe_task", lambda: "")
        entry_points.load_object("fiber._watch.debugger:install")(
            runtime, runtime.parent_url, describe
        )
    held = OwnedDescriptors((sentinel,))
    code = _run(process, sentinel)
    if not (held.are_intact if link is None else link.is_intact):
        # user code has closed our descriptors, as a daemonize() does: nothing can be closed in order,
        # and other files may have the numbers
        os._exit(code & 0xFF)
    runtime.exit_code = code
    runtime.close()
    nng = sys.modules.get("fiber._wire.nng")
    if nng is not None:
        nng.close_all()
    return code


def _run(process: Any, sentinel: int) -> int:
    """Run the process object, and the exit functions after it; returns the exit code."""
    import atexit
    from multiprocessing import util

    code: int
    try:
        code = process._bootstrap(parent_sentinel=sentinel)  # noqa: SLF001 - as the stdlib does
    finally:
        # here, because they may use what the runtime keeps open
        vars(atexit)["_run_exitfuncs"]()
        vars(util)["_flush_std_streams"]()
    return code


def _ask_parent(runtime: Any, question: bytes) -> bytes:
    pending = runtime.client(runtime.parent_url).call(0, [question])
    pending.wait()
    return bytes(pending.result())


def fresh_main() -> None:
    """Put empty main modules in place of this process's own."""
    # the supervisor's own __main__ must not be the program's
    module = types.ModuleType("__mp_main__")
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def _config(payload: dict[str, Any]) -> Any:
    if "settings" not in payload:
        return payload["config"]
    try:
        settings = codec.loads(memoryview(payload["settings"]))
    except ImportError:
        # the backend's plugin is not installed on this host, which matters only to code that uses it
        return payload["config"]
    return values.evolve(payload["config"], settings=settings)


def _prepare_remote(runtime: Any, url: str, payload: dict[str, Any]) -> None:
    """Prepare this process on a host that does not see the parent's files."""
    from fiber._launch.code import CodeFinder, ContentStore, load_main
    from fiber._launch.preparation import mark_inherited
    from fiber._launch.submit_proxy import ManyProxyBackend, ProxyBackend
    from fiber.model import BackendInfo

    mark_inherited()
    store = ContentStore(runtime.directory, lambda question: _ask_parent(runtime, question))
    finder = CodeFinder(payload["modules"], store)
    # described by the parent: its plugin need not be installed on this host
    info = payload["backend"]
    runtime._info = BackendInfo(load=_refuse_to_load, **info)  # noqa: SLF001 - a child's
    proxy = ManyProxyBackend if payload["takes_many"] else ProxyBackend
    runtime._backend = proxy(info["name"], lambda: runtime._connect(url))  # noqa: SLF001 - as above
    sys.meta_path.insert(0, finder)
    codec.set_missing_module_hook(finder.explain)
    preparation = dict(payload["preparation"])
    for key in ("dir", "orig_dir", "sys_path"):
        preparation.pop(key, None)
    by_path = preparation.pop("init_main_from_path", None) is not None
    try:
        prepare(preparation, (lambda: load_main(store)) if by_path else None)
    except ModuleNotFoundError as error:
        finder.explain(error)
        raise


def _refuse_to_load(_context: Any) -> Any:
    msg = "a backend is loaded by its plugin"
    raise StartError(msg)


def prepare(preparation: dict[str, Any], main: Callable[[], None] | None = None) -> None:
    """Prepare this process to run what the program's main module defines.

    Args:
        preparation: as ``multiprocessing.spawn`` has it.
        main: loads that module, where the file is not here.

    Raises:
        SystemExit: the module starts processes while it is loaded.
    """
    from multiprocessing import process, spawn

    current: Any = process.current_process()
    # an unguarded main that starts processes while it is loaded gets an explanation
    current._inheriting = True  # noqa: SLF001 - as spawn does
    try:
        spawn.prepare(preparation)
        if main is not None:
            main()
    except UnguardedMainError as error:
        # one line, where a traceback of each child's start would hide it
        msg = f"fiber: {error}"
        raise SystemExit(msg) from None
    finally:
        del current._inheriting  # noqa: SLF001 - as spawn does
    codec.set_main_by_reference(
        main is not None
        or "init_main_from_name" in preparation
        or "init_main_from_path" in preparation
    )


if __name__ == "__main__":
    from fiber.backend_parts.private import read_private

    sys.exit(main(read_private(), 0))
