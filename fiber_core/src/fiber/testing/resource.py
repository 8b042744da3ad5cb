"""Conformance kit for resource providers: :class:`ResourceProviderConformance`.

Apart from ``kit.provider``, so that its asserts are rewritten before it is imported.
"""

from __future__ import annotations

import pytest

# before the module is imported, so that a failing assert shows its values
pytest.register_assert_rewrite("fiber.testing.kit")

from fiber.testing.kit.provider import ResourceProviderConformance  # noqa: E402  see above

__all__ = ["ResourceProviderConformance"]
