"""MXNet and XGBoost: the ``DMLC_`` variables, by which workers find their tracker."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from fiber._ring.framework import RingFramework
from fiber._ring.view import RingView

__all__ = ["MXNet", "XGBoost"]


class MXNet(RingFramework):
    """All members are workers of one key-value store; its scheduler is rank 0's to start."""

    name = "mxnet"

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Role, scheduler and counts."""
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
    """A tracker in rank 0's process, and how workers find it."""

    name = "xgboost"

    def host(self, ring: RingView) -> Mapping[str, Any]:
        """Start XGBoost's own tracker, at a port of its choice."""
        xgboost: Any = importlib.import_module("xgboost.tracker")
        tracker = xgboost.RabitTracker(n_workers=ring.size, host_ip=ring.me.ip, port=0)
        tracker.start()
        ring.on_leave(tracker.free)
        told = tracker.worker_args()
        return {"uri": told["dmlc_tracker_uri"], "port": told["dmlc_tracker_port"]}

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """The tracker, and this member's place."""
        return {
            "DMLC_TRACKER_URI": str(facts["uri"]),
            "DMLC_TRACKER_PORT": str(facts["port"]),
            "DMLC_NUM_WORKER": str(ring.size),
            "DMLC_TASK_ID": str(ring.rank),
        }
