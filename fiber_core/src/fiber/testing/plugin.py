"""Conformance kit for plugins: :class:`PluginConformance`.

Apart from ``kit.plugins``, so that its asserts are rewritten before it is imported.
"""

from __future__ import annotations

import pytest

# before the module is imported, so that a failing assert shows its values
pytest.register_assert_rewrite("fiber.testing.kit")

from fiber.testing.kit.plugins import PluginConformance  # noqa: E402  see above

__all__ = ["PluginConformance"]
