"""Conformance kit for backends: :class:`BackendConformance`, a class of tests to subclass.

Apart from the modules of ``kit``, so that their asserts are rewritten before they are imported.
"""

from __future__ import annotations

import pytest

# before the modules of the kit are imported, so that a failing assert shows its values
pytest.register_assert_rewrite("fiber.testing.kit")

from fiber.testing.kit.core import CoreApi  # noqa: E402  see above
from fiber.testing.kit.delivery import Delivery, Streams  # noqa: E402
from fiber.testing.kit.faults import Faults, Witnessed  # noqa: E402
from fiber.testing.kit.groups import Groups  # noqa: E402
from fiber.testing.kit.lifecycle import Lifecycle, Stops  # noqa: E402
from fiber.testing.kit.machine import AnyOrder  # noqa: E402
from fiber.testing.kit.options import Options  # noqa: E402
from fiber.testing.kit.output import Output  # noqa: E402
from fiber.testing.kit.platform import Platform  # noqa: E402
from fiber.testing.kit.scale import Scale  # noqa: E402

__all__ = ["BackendConformance"]


class BackendConformance(
    Lifecycle,
    Stops,
    Delivery,
    Output,
    Groups,
    Options,
    Streams,
    Witnessed,
    CoreApi,
    Faults,
    Scale,
    AnyOrder,
    Platform,
):
    """Tests of the contract of :class:`fiber.abc.Backend`.

    Subclass it with one fixture::

        class TestMine(BackendConformance):
            @pytest.fixture
            def backend(self, context):
                backend = MyBackend(context)
                yield backend
                backend.close()

    Tests of undeclared capabilities are skipped, after a check that their use raises CapabilityError.
    A test can only be overridden by one marked ``xfail`` with a reason. More is
    checked where the subclass gives the optional fixtures ``witness``, ``settings``, ``unreachable``,
    ``reopen``, ``volume`` and ``image_context``. While a backend is being written, the attribute
    ``levels`` limits the levels that are run.
    """
