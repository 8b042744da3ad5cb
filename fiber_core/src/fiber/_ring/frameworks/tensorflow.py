"""TensorFlow: ``TF_CONFIG`` for ``MultiWorkerMirroredStrategy``.

Apart from the other frameworks: each is a module, which is imported when it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fiber._ring.framework import RingFramework
from fiber._ring.view import RingView

__all__ = ["TensorFlow"]


class TensorFlow(RingFramework):
    """Members as workers; rank 0 is the chief by TensorFlow's own rule."""

    name = "tensorflow"
    open_servers = "TensorFlow's server in each member"

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the cluster and this member's task."""
        config = {
            "cluster": {"worker": [f"{member.ip}:{member.port}" for member in ring.members]},
            "task": {"type": "worker", "index": ring.rank},
        }
        return {"TF_CONFIG": json.dumps(config)}
