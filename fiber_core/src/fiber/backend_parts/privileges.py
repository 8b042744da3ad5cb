"""Linux capabilities that processes in containers do without, for all backends that have containers.

Engines give a container fourteen, of which root has the use. Those that are left are the ones by which
root reads, writes and gives away the files of others, changes its user and binds low ports: images
that run as root count on them, also on volumes whose files belong to somebody else.
"""

from __future__ import annotations

__all__ = ["UNNEEDED_CAPABILITIES"]

#: raw packets (and so others' addresses), devices, ``chroot``, the audit log, and passing
#: capabilities on
UNNEEDED_CAPABILITIES = ("AUDIT_WRITE", "MKNOD", "NET_RAW", "SETFCAP", "SETPCAP", "SYS_CHROOT")
