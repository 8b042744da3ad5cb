"""Linux capabilities that processes in containers do without, for all backends that have containers.

Engines give a container fourteen, of which root has the use. Those that are left are the ones by which
root reads, writes and gives away the files of others, changes its user and binds low ports: images
that run as root count on them, also on volumes whose files belong to somebody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fiber.model import JobSpec

__all__ = ["UNNEEDED_CAPABILITIES", "is_reduced"]

#: raw packets (and so others' addresses), devices, ``chroot``, the audit log, and passing
#: capabilities on
UNNEEDED_CAPABILITIES = ("AUDIT_WRITE", "MKNOD", "NET_RAW", "SETFCAP", "SETPCAP", "SYS_CHROOT")


def is_reduced(security: str, spec: JobSpec) -> bool:
    """True for a job whose container does without privileges, by a backend's setting ``security``.

    With ``restricted`` all do, with ``reduced`` those of processes and workers, with ``image`` none.
    """
    return security == "restricted" or (security == "reduced" and spec.entry is not None)
