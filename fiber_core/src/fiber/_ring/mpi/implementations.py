"""The MPI implementations whose ``mpirun`` we can lead, told by what it says of itself.

The settings of each MPI implementation, as environment: our agent, our hosts, our networks.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

from fiber._base import values
from fiber.exceptions import FiberError

__all__ = [
    "Family",
    "Ground",
    "Stack",
    "arguments",
    "environment",
    "member_environment",
    "recognise",
    "wishes",
]


class Family(enum.Enum):
    """Who wrote it; settings and hostfiles differ by it."""

    #: Open MPI up to 4, which starts its daemons itself
    OPEN_MPI = "Open MPI"
    #: Open MPI 5 and later, whose daemons are PRRTE's and whose settings have other names
    OPEN_MPI_PRRTE = "Open MPI with PRRTE"
    #: MPICH, and what is built with its Hydra
    MPICH = "MPICH"
    #: Intel MPI, with a Hydra of its own
    INTEL = "Intel MPI"


@values.frozen
class Stack:
    """An installed MPI implementation."""

    #: who wrote it
    family: Family
    #: its version as it says it, for people
    version: str

    @property
    def is_open_mpi(self) -> bool:
        """True for any Open MPI."""
        return self.family in (Family.OPEN_MPI, Family.OPEN_MPI_PRRTE)

    def __str__(self) -> str:
        name = "Open MPI" if self.is_open_mpi else self.family.value
        return f"{name} {self.version}"


_OPEN_MPI = re.compile(r"\((?:Open MPI|OpenRTE|PRRTE|prte)\)\s*v?(?P<version>(?P<major>\d+)[\w.]*)")
_PRRTE = re.compile(r"\bprter?(?:un)?\b.*?\b(?P<version>\d+\.[\w.]*)", re.IGNORECASE)
_INTEL = re.compile(r"Intel\(R\) MPI Library.*?Version\s+(?P<version>[\d.]+)", re.DOTALL)
_HYDRA = re.compile(r"HYDRA build details.*?Version:\s*(?P<version>\S+)", re.DOTALL)
#: the first major version of Open MPI whose daemons are PRRTE's
_PRRTE_SINCE = 5


def recognise(program: str, said: str) -> Stack:
    """Which implementation a ``mpirun`` belongs to.

    Args:
        program: its path, for the message.
        said: what it printed when it was asked for its version.

    Raises:
        FiberError: none that we know.
    """
    if found := _INTEL.search(said):
        return Stack(Family.INTEL, found["version"])
    if found := _HYDRA.search(said):
        return Stack(Family.MPICH, found["version"])
    if found := _OPEN_MPI.search(said):
        new = "PRRTE" in found[0].upper() or int(found["major"]) >= _PRRTE_SINCE
        return Stack(Family.OPEN_MPI_PRRTE if new else Family.OPEN_MPI, found["version"])
    if found := _PRRTE.search(said):
        return Stack(Family.OPEN_MPI_PRRTE, found["version"])
    first = next(iter(said.strip().splitlines()), "nothing")
    msg = (
        f"{program} is no mpirun that we know, it says {first!r}; name one of Open MPI, MPICH or "
        "Intel MPI with --mpirun"
    )
    raise FiberError(msg)


#: stands in for our agent on members, whose daemons refuse to run where it does not exist
_FALLBACK = " : true"
#: agents that may run at once: all of them, for none ends before its daemon does
_MANY = "4096"


@values.frozen(kw_only=True)
class Ground:
    """What ``mpirun`` is told of the run it is part of."""

    #: path of the agent's program, without blanks and colons
    agent: str
    #: path of the hostfile
    hostfile: str
    #: networks in which all members reach each other, as ``10.0.0.0/16``; empty where unknown
    networks: tuple[str, ...] = ()
    #: the launcher's interface in those networks, where known
    interface: str | None = None
    #: slots of a member; None where they differ
    slots: int | None = 1
    #: True where several members have one host name
    one_host: bool = False


def environment(stack: Stack, ground: Ground) -> dict[str, str]:
    """What to set where ``mpirun`` starts."""
    return _OF[stack.family](ground)


def wishes(environ: Mapping[str, str]) -> frozenset[str]:
    """The names among them that count only where the user has said nothing."""
    return frozenset(name for name in environ if not name.lower().endswith(_OURS))


def arguments(stack: Stack, count: int | None, *, unlike: str | None = None) -> list[str]:
    """What to say on the command line besides: how many ranks.

    Args:
        stack: whose command line.
        count: of ranks; None to leave it to the user.
        unlike: path of the hostfile, where slots differ.
    """
    # it reads the slots of a file that is named here, not of one that the environment names
    found = ["-machinefile", unlike] if unlike and stack.family is Family.INTEL else []
    if count is not None:
        found += ["-np" if stack.is_open_mpi else "-n", str(count)]
    return found


def _open_mpi(ground: Ground) -> dict[str, str]:
    networks = ",".join(ground.networks)
    found = {
        "OMPI_MCA_plm_rsh_agent": ground.agent + _FALLBACK,
        # each daemon is started from here, and its agent stays with it
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_plm_rsh_num_concurrent": _MANY,
        "OMPI_MCA_orte_leave_session_attached": "1",
        "OMPI_MCA_orte_default_hostfile": ground.hostfile,
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        # it would ask for each name four times, and no name server knows ours
        "OMPI_MCA_if_base_do_not_resolve": "1",
        # members share a machine with others, whose processors are no business of ours
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        **_ROOT,
    }
    if networks:
        found["OMPI_MCA_oob_tcp_if_include"] = networks
        found["OMPI_MCA_btl_tcp_if_include"] = networks
    return {**found, **_hierarchy(ground)}


def _prrte(ground: Ground) -> dict[str, str]:
    networks = ",".join(ground.networks)
    found = {
        "PRTE_MCA_plm_ssh_agent": ground.agent + _FALLBACK,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_num_concurrent": _MANY,
        "PRTE_MCA_prte_leave_session_attached": "1",
        "PRTE_MCA_prte_default_hostfile": ground.hostfile,
        "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        **_ROOT,
    }
    if networks:
        found["OMPI_MCA_btl_tcp_if_include"] = networks
    if networks and not networks.startswith("127."):
        # its daemons never use loopback, whatever they are told
        found["PRTE_MCA_prte_if_include"] = networks
    return {**found, **_hierarchy(ground)}


def _hierarchy(ground: Ground) -> dict[str, str]:
    # collectives in steps, within a host and between hosts, hang where two daemons have one name
    return {"OMPI_MCA_coll": "^han"} if ground.one_host else {}


def _mpich(ground: Ground) -> dict[str, str]:
    found = {
        "HYDRA_HOST_FILE": ground.hostfile,
        "HYDRA_LAUNCHER": "rsh",
        "HYDRA_LAUNCHER_EXEC": ground.agent,
        # ranks of a container may not read each other's memory, and it aborts where it may not
        "MPIR_CVAR_CH4_CMA_ENABLE": "0",
    }
    if ground.interface:
        found["HYDRA_IFACE"] = ground.interface
    return found


def _intel(ground: Ground) -> dict[str, str]:
    found = {
        "I_MPI_HYDRA_HOST_FILE": ground.hostfile,
        "I_MPI_HYDRA_BOOTSTRAP": "rsh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": ground.agent,
        "I_MPI_PIN": "0",
    }
    if ground.slots is not None:
        # else those of the hostfile count
        found["I_MPI_PERHOST"] = str(ground.slots)
    if ground.interface:
        found["I_MPI_HYDRA_IFACE"] = ground.interface
    return found


#: ends of names without whose values the run is none
_OURS = (
    "agent",
    "hostfile",
    "host_file",
    "launcher",
    "launcher_exec",
    "bootstrap",
    "bootstrap_exec",
)

#: jobs in images are root's as a rule, and Open MPI runs as root only where it is told to
_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_OF = {
    Family.OPEN_MPI: _open_mpi,
    Family.OPEN_MPI_PRRTE: _prrte,
    Family.MPICH: _mpich,
    Family.INTEL: _intel,
}


def member_environment(interface: str, *, folder: str | None = None) -> dict[str, str]:
    """What to set on a member.

    Args:
        interface: by which its ranks reach the others.
        folder: its own, where other members are on its host too: Open MPI calls the memory that
            ranks of a host share by the host's name and their number on it, in a folder of all.
    """
    apart = {
        "OMPI_MCA_btl_vader_backing_directory": folder,
        "OMPI_MCA_btl_sm_backing_directory": folder,
    }
    return {
        **{name: value for name, value in apart.items() if value},
        "FI_TCP_IFACE": interface,
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": f"={interface}",
    }
