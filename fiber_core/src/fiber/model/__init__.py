"""Frozen values that cross module, package and process borders; no I/O happens here.

``job`` has what a backend is asked for and what it reports, ``resource`` requests and grants of
devices, ``timing`` the durations of a run, ``network`` what is needed to choose a listening address, ``plugin`` the values that hooks
return. All are immutable, picklable unless a field says otherwise, and compare by value. Imported by
every layer above ``_base``, and by plugins; imports only ``_base``.
"""

from fiber.model.job import (
    Capabilities,
    Capacity,
    Check,
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
    Volume,
)
from fiber.model.network import Interface, ListenAddress, Peers
from fiber.model.plugin import BackendClaim, BackendContext, BackendInfo
from fiber.model.resource import Allocation, Device, ResourceRequest
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
