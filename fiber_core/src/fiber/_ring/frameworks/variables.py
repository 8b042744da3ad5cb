"""Frameworks that read environment variables: MXNet and XGBoost ``DMLC_`` ones, TensorFlow ``TF_CONFIG``.

Apart from the other frameworks, which do more than that and are imported when they are asked for.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import Any

from fiber._ring.framework import RingFramework
from fiber._ring.view import RingView

__all__ = ["MXNet", "TensorFlow", "XGBoost"]


class MXNet(RingFramework):
    """Members are workers of one key-value store; user code of rank 0 starts its scheduler."""

    name = "mxnet"
    open_servers = "MXNet's scheduler and servers"

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Return role, scheduler's address and counts."""
        first = ring.members[0]
        return {
            "DMLC_ROLE": "worker",
            "DMLC_PS_ROOT_URI": first.ip,
            "DMLC_PS_ROOT_PORT": str(first.port),
            "DMLC_NUM_WORKER": str(ring.size),
            "DMLC_NUM_SERVER": str(ring.size),
            "DMLC_WORKER_ID": str(ring.rank),
            "DMLC_NODE_HOST": ring.me.ip,
        }


class XGBoost(RingFramework):
    """A tracker in the process of rank 0, and its address for the workers."""

    name = "xgboost"
    open_servers = "XGBoost's tracker in rank 0 and its workers"

    def host(self, ring: RingView) -> Mapping[str, Any]:
        """Start XGBoost's own tracker, at a port of its choice."""
        xgboost: Any = importlib.import_module("xgboost.tracker")
        tracker = xgboost.RabitTracker(n_workers=ring.size, host_ip=ring.me.ip, port=0)
        tracker.start()
        ring.on_leave(tracker.free)
        arguments = tracker.worker_args()
        return {"uri": arguments["dmlc_tracker_uri"], "port": arguments["dmlc_tracker_port"]}

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the tracker's address, and this member's task id."""
        return {
            "DMLC_TRACKER_URI": str(facts["uri"]),
            "DMLC_TRACKER_PORT": str(facts["port"]),
            "DMLC_NUM_WORKER": str(ring.size),
            "DMLC_TASK_ID": str(ring.rank),
        }


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
