"""Failed tasks that are kept, so that they can be run again by hand.

A :class:`Keeper` pickles the function and the arguments of a failed task before its error is handed out,
and writes them on a thread of its own into a file of the user's state folder, where they outlive the run;
:class:`KeptTask` is such a file, and ``error.replay`` of the task's error. Files are read only where they
are this user's alone: their content is pickled.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fiber._base.threads import SerialExecutor
from fiber._tasks.protocol import Mode
from fiber._wire import codec
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber._runtime.runtime import Runtime
    from fiber._tasks.call import Call

log = logging.getLogger("fiber")

#: most tasks that one program keeps, most of all programs together, and most bytes of one
_MOST, _MOST_FILES, _MOST_BYTES = 32, 256, 64 * 2**20
_END = ".task"
#: of what a child needs to load the program's main module
_PREPARATION = (
    "dir",
    "orig_dir",
    "sys_argv",
    "sys_path",
    "init_main_from_name",
    "init_main_from_path",
)


class KeptTask:
    """A failed task in a file; called, it runs again in this process.

    Args:
        path: of the file.
        written: set once the file is there, or cannot be; None for one that is.
    """

    def __init__(self, path: str, written: threading.Event | None = None) -> None:
        self._path = path
        self._written = written
        # what this process has yet; it is not pickled with it
        self._live: tuple[bytes, Mode, Any] | None = None

    @property
    def path(self) -> str:
        """The file; waits until that is written."""
        if self._written is not None:
            self._written.wait()
        return self._path

    @property
    def task(self) -> str:
        """Its name for ``fiber replay``."""
        return Path(self._path).name.removesuffix(_END)

    def __call__(self) -> Any:
        """Run the function with the same arguments here; its result, or its exception.

        Raises:
            FiberError: it is kept no more, or refers to what there was in its run only.
        """
        function, args, kwargs = self.load()
        return function(*args, **kwargs)

    def load(self) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The function and its arguments.

        Raises:
            FiberError: it is kept no more, or refers to what there was in its run only.
        """
        try:
            function, mode, item = self._live or codec.loads(memoryview(self._read()[1]))
            called = codec.loads(memoryview(bytearray(function)))
        except FiberError:
            raise
        # whatever the classes of arguments raise
        except Exception as error:
            msg = f"task {self.task} cannot be loaded here: {type(error).__name__}: {error}"
            raise FiberError(msg) from error
        if mode == Mode.APPLY:
            return called, tuple(item[0]), dict(item[1])
        return called, (item,) if mode == Mode.MAP else tuple(item), {}

    def describe(self) -> dict[str, Any]:
        """Its function, item, error, time, run, and how its program is loaded.

        Raises:
            FiberError: it is kept no more.
        """
        found: dict[str, Any] = self._read()[0]
        return found

    def _read(self) -> tuple[dict[str, Any], bytearray]:
        try:
            with open(self.path, "rb") as file:
                _check_private(os.fstat(file.fileno()), self.path)
                head = file.readline()
                return json.loads(head), bytearray(file.read())
        except (OSError, ValueError) as error:
            msg = f"task {self.task} is not kept any more ({error}); 'fiber replay' lists those there are"
            raise FiberError(msg) from error

    def __repr__(self) -> str:
        return f"<kept task {self.task}: call it, or run 'fiber replay {self.task}'>"

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptTask, (self.path,)


def _check_private(status: os.stat_result, path: object) -> None:
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        msg = f"{path} is not user {os.getuid()}'s alone, and what it says is not run"
        raise FiberError(msg)


def folder() -> Path:
    """The folder of all kept tasks of this user; it may not be there."""
    import platformdirs

    return platformdirs.user_state_path("fiber") / "failed"


def kept() -> Iterator[KeptTask]:
    """The kept tasks, oldest first."""
    try:
        paths = [path for path in folder().iterdir() if path.name.endswith(_END)]
    except FileNotFoundError:
        return
    for path in sorted(paths, key=lambda path: path.stat().st_mtime):
        yield KeptTask(str(path))


#: of the tasks that this process keeps
_numbers = itertools.count(1)


class Keeper:
    """Keeps the failed tasks of one pool or executor.

    Args:
        runtime: of this process.
        name: of its thread, which the first task that fails starts.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._runtime = runtime
        self._name = name
        self._writer: SerialExecutor | None = None
        self._folder: Path | None = None
        #: of this pool
        self._count = 0
        self._is_over = False

    def keep(self, call: Call, index: int, error: BaseException) -> None:
        """Keep a task that has failed, and note it at its error; never raises, and waits for no disk.

        Called under the dispatcher's lock.

        Args:
            call: its call.
            index: its item.
            error: its error.
        """
        if self._is_over or self._count >= _MOST or hasattr(error, "replay"):
            return
        try:
            task = self._keep(call, index, error)
        # user code is pickled
        except Exception as failure:
            self._give_up(failure)
            return
        try:
            error.replay = task  # type: ignore[attr-defined] # documented for errors of tasks
            add_note = getattr(error, "add_note", None)
            if add_note is not None:
                add_note(f"fiber replay {task.task} runs this task again")
        except Exception as failure:
            # it takes no attributes
            log.debug(
                "fiber: task %s is kept, which its error does not tell: %s", task.task, failure
            )

    def close(self, *, waits: bool = True) -> None:
        """End the thread once all is written; what fails from now on is not kept. Idempotent."""
        self._is_over = True
        if self._writer is not None:
            (self._writer.close if waits else self._writer.end)()

    def _keep(self, call: Call, index: int, error: BaseException) -> KeptTask:
        self._count += 1
        function, item = b"".join(map(bytes, call.function)), call.item(index)
        with codec.pickling_into(call):
            pickled = codec.dumps((function, call.mode, item))
        size = sum(map(len, pickled))
        if size > _MOST_BYTES:
            msg = f"the arguments of {call.name} have {size} bytes, and {_MOST_BYTES} are kept at most"
            raise FiberError(msg)
        preparation = self._runtime.launcher.preparation()
        head = {
            "run": self._runtime.run_id,
            "function": call.name,
            "item": index,
            "error": f"{type(error).__name__}: {error}",
            "when": time.time(),
            "preparation": {key: preparation[key] for key in _PREPARATION if key in preparation},
        }
        # parts of it are the program's arrays, which it may change before they are written
        content = json.dumps(head, default=str).encode() + b"\n" + b"".join(pickled)
        path, written = folder() / self._new_name(), threading.Event()
        if self._writer is None:
            self._writer = SerialExecutor(self._name)
        if not self._writer.submit(lambda: self._write(path, content, written)):
            msg = "its pool has ended"
            raise FiberError(msg)
        task = KeptTask(str(path), written)
        task._live = function, call.mode, item  # noqa: SLF001 - ours
        return task

    def _new_name(self) -> str:
        # processes of one run share its id
        own = "" if self._runtime.is_master else f"{self._runtime.ident}-"
        return f"{self._runtime.run_id}-{own}{next(_numbers)}{_END}"

    def _give_up(self, failure: Exception) -> None:
        if not self._is_over:
            self._is_over = True
            log.warning("fiber: failed tasks are not kept any more: %s", failure)

    # -- on its thread

    def _write(self, path: Path, content: bytes, written: threading.Event) -> None:
        try:
            if self._folder is None:
                self._folder = _ready_folder()
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with open(descriptor, "wb") as file:
                    file.write(content)
            except BaseException:
                # half of a task is none
                path.unlink(missing_ok=True)
                raise
        # disks are full, and folders somebody else's
        except (OSError, FiberError) as failure:
            self._give_up(failure)
        finally:
            written.set()


def _ready_folder() -> Path:
    """The folder of kept tasks, made where it is missing, without the oldest of too many."""
    made = folder()
    made.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(made.lstat(), made)
    for old in list(kept())[:-_MOST_FILES]:
        Path(old.path).unlink(missing_ok=True)
    return made
