"""Conformance kit for backends: :class:`BackendConformance`, a class of tests to subclass."""

from __future__ import annotations

from fiber.testing.kit.core import CoreApi
from fiber.testing.kit.delivery import Delivery, Output, Streams
from fiber.testing.kit.faults import Faults, Scale, Witnessed
from fiber.testing.kit.lifecycle import Lifecycle, Stops
from fiber.testing.kit.machine import AnyOrder
from fiber.testing.kit.options import (
    Groups,
    Options,
)
from fiber.testing.kit.platform import Platform


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
