"""The public names of Fiber; run it to write them down after a change on purpose.

python tests/support/public_names.py > tests/architecture/public_names.txt
"""

import importlib
from collections.abc import Iterator

#: what users and authors of plugins import from; everything else may change at any time
PUBLIC_MODULES = (
    "fiber",
    "fiber.abc",
    *(
        f"fiber.backend_parts.batch.{name}"
        for name in (
            "backend",
            "config",
            "folder",
            "guard",
            "names",
            "poller",
            "status",
            "streams",
            "system",
        )
    ),
    "fiber.connection",
    "fiber.context",
    "fiber.exceptions",
    "fiber.executor",
    "fiber.experimental",
    "fiber.hints",
    "fiber.hookspecs",
    "fiber.managers",
    "fiber.model",
    "fiber.pool",
    "fiber.process",
    "fiber.queues",
    "fiber.reduction",
    "fiber.results",
    "fiber.sharedctypes",
    "fiber.synchronize",
    "fiber.testing",
    "fiber.watching",
)


def public_names() -> Iterator[str]:
    for module in PUBLIC_MODULES:
        for name in sorted(importlib.import_module(module).__all__):
            yield f"{module}.{name}"


if __name__ == "__main__":
    print("\n".join(public_names()))
