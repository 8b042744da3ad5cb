"""Frozen values that cross module, package and process borders; no I/O happens here.

``job`` has what a backend is asked for, devices and memory among it, and what it reports, ``timing`` the durations of a run,
``plugin`` the values that hooks take and return. All are immutable, picklable unless a field says otherwise, and compare by value. Imported by
every layer above ``_base``, and by plugins; imports only ``_base``.
"""

from fiber.model.job import (
    Allocation,
    Capabilities,
    Capacity,
    Check,
    Device,
    Gang,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    ProcessStatus,
    Reach,
    ReachKind,
    Reason,
    ReasonKind,
    ResourceRequest,
    Volume,
)
from fiber.model.plugin import (
    BackendClaim,
    BackendContext,
    BackendInfo,
    Interface,
    ListenAddress,
    Peers,
)
from fiber.model.timing import Durations, Timing

__all__ = [
    "Allocation",
    "BackendClaim",
    "BackendContext",
    "BackendInfo",
    "Capabilities",
    "Capacity",
    "Check",
    "Device",
    "Durations",
    "Gang",
    "Interface",
    "Job",
    "JobSpec",
    "JobState",
    "JobStatus",
    "ListenAddress",
    "Peers",
    "ProcessStatus",
    "Reach",
    "ReachKind",
    "Reason",
    "ReasonKind",
    "ResourceRequest",
    "Timing",
    "Volume",
]
