"""The layers of the core, lowest first, and the imports that point up; run it to see them.

``python3 tests/support/layers.py`` needs no package but the standard library, and none of Fiber's
is imported: files are parsed.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import layout

#: a module belongs to the longest name that it begins with; it may import what stands in its own
#: line or above it, wherever the import stands: in functions and for type checkers, too
LAYERS = """
fiber._version
fiber._base                 classes of values, entry points, background threads
fiber.model.job
fiber.model.timing
fiber.exceptions
fiber.abc                   what plugins subclass
fiber.model.plugin
fiber.model                 values that cross borders
fiber.hookspecs             what plugins answer
fiber.images
fiber.backend_parts         what backends are built from
fiber._wire                 frames, handshakes, connections
fiber._tunnel               connections carried over byte streams into jobs
fiber._tasks.pending        the pending table: pure
fiber._tasks                the way of a task to a worker and back
fiber._config               settings
fiber._plugins              plugins and the choice of a backend
fiber._agent.resources      devices
fiber._agent                what all processes of jobs need
fiber._agent.supervisor     processes of this host
fiber._agent.job            jobs of other hosts
fiber._launch               jobs as the process that starts them sees them
fiber._runtime              what one process of a run owns
fiber._objects              shared objects: queues, shared memory, values
fiber._objects.sync         locks, semaphores, events, conditions, barriers
fiber._objects.managed      objects of managers
fiber.hints
fiber.process
fiber._workers              groups of worker processes
fiber.watching              values that tell how work goes
fiber._watch                who shows them
fiber.results
fiber.pool
fiber.executor
fiber.connection
fiber.queues
fiber.synchronize
fiber.sharedctypes
fiber.shared_memory
fiber.sharing
fiber.joblib
fiber.managers
fiber.context
fiber.dummy
fiber.reduction
fiber.util
fiber._ring                 members, ranks, frameworks
fiber._ring.command_rings   rings of commands
fiber._ring.mpi             mpirun on jobs
fiber.experimental
fiber                       names that users import
fiber._dashboard            the page in a browser
fiber.testing               kits for plugins
fiber.cli                   the command
"""


def names(text: str = LAYERS) -> list[str]:
    """The names in the list, lowest first."""
    return [line.split()[0] for line in text.splitlines() if line.strip()]


def layer_of(module: str, layers: Sequence[str]) -> str | None:
    """The layer of a module: the longest name that it begins with."""
    parts = module.split(".")
    # everything begins with the package itself, which is a layer of one module
    least = 2 if len(parts) > 1 else 1
    for length in range(len(parts), least - 1, -1):
        name = ".".join(parts[:length])
        if name in layers:
            return name
    return None


def upward(modules: Mapping[str, Path], layers: Sequence[str]) -> list[str]:
    """The imports among modules that point up in the list, or from or to one that is in no layer."""
    rank = {name: number for number, name in enumerate(layers)}
    found = []
    for name, path in modules.items():
        for one in layout.imports(name, path, types=True):
            imported = layout.module_of(one.imported, modules)
            if imported is None:
                continue
            mine, theirs = layer_of(name, layers), layer_of(imported, layers)
            if mine is None or theirs is None:
                problem = f"{name if mine is None else imported} is in no layer"
            elif rank[theirs] > rank[mine]:
                problem = f"{theirs} is above {mine}"
            else:
                continue
            found.append(f"{path}:{one.line}: {name} imports {imported}: {problem}")
    return found


def circles(modules: Mapping[str, Path]) -> set[frozenset[str]]:
    """The largest groups of modules each of which imports every other, also by way of others or for types alone."""
    found = {
        name: {
            other
            for one in layout.imports(name, path, types=True)
            if (other := layout.module_of(one.imported, modules)) is not None
        }
        - {name}
        for name, path in modules.items()
    }
    reached = {}
    for name, direct in found.items():
        known, new = set[str](), set(direct)
        while new:
            known |= new
            new = {other for one in new for other in found[one]} - known
        reached[name] = known
    return {
        frozenset(other for other in known if name in reached[other])
        for name, known in reached.items()
        if name in known
    }


def of_the_core() -> list[str]:
    """The imports of the core that point up."""
    return upward(dict(layout.modules(layout.CORE)), names())


if __name__ == "__main__":
    edges = of_the_core()
    print("\n".join(edges) or "no import points up")
    sys.exit(bool(edges))
