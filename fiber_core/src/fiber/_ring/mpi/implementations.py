"""MPI implementations: recognition by ``mpirun --version``, and settings for Fiber's runs.

Settings go into the environment wherever an implementation reads them there: the agent in place of
a remote shell, the host file and the networks. Pure and apart from the controller of a run, so that
what is known of each implementation stands in one place.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

from fiber._base import values
from fiber.exceptions import FiberError


class Family(enum.Enum):
    """Families of implementations, with settings and host files of their own."""

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

    #: its family
    family: Family
    #: its version, for display
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


def recognise(program: str, output: str) -> Stack:
    """Recognise an implementation by the output of ``mpirun --version``.

    Args:
        program: path of the mpirun, for the error.
        output: what it printed.

    Raises:
        FiberError: the implementation is unknown.
    """
    if found := _INTEL.search(output):
        return Stack(Family.INTEL, found["version"])
    if found := _HYDRA.search(output):
        return Stack(Family.MPICH, found["version"])
    if found := _OPEN_MPI.search(output):
        new = "PRRTE" in found[0].upper() or int(found["major"]) >= _PRRTE_SINCE
        return Stack(Family.OPEN_MPI_PRRTE if new else Family.OPEN_MPI, found["version"])
    if found := _PRRTE.search(output):
        return Stack(Family.OPEN_MPI_PRRTE, found["version"])
    first = next(iter(output.strip().splitlines()), "nothing")
    msg = (
        f"{program} is no mpirun that we know, its output is {first!r}; name one of Open MPI, MPICH or "
        "Intel MPI with --mpirun"
    )
    raise FiberError(msg)


#: alternative to our agent, for daemons on members, which refuse to run where no agent exists
_FALLBACK = " : true"
#: batch systems whose allocations Open MPI would use in place of our host file
_NO_BATCH_SYSTEM = "^slurm,tm,pbs,lsf,gridengine"
#: agents at once: all of them, for none ends before its daemon does
_MANY = "4096"
#: PMIx keeps an interface's index in 16 bits with a sign, and takes one beyond for no interface:
#: a host gets there after some ten thousand containers (github.com/openpmix/openpmix/pull/4182)
_PRRTE_LARGEST_INDEX = 32767


@values.frozen(kw_only=True)
class RunFacts:
    """Facts of a run that an mpirun's settings depend on."""

    #: path of the agent, without spaces and colons
    agent: str
    #: path of the host file
    hostfile: str
    #: networks in which all members reach each other, as ``10.0.0.0/16``; empty where unknown
    networks: tuple[str, ...] = ()
    #: the launcher's interface in those networks, if known
    interface: str | None = None
    #: largest of the kernels' indices of the members' interfaces in those networks
    largest_index: int = 0
    #: slots of a member; None where they differ
    slots: int | None = 1
    #: True where several members have one host name
    one_host: bool = False


def environment(stack: Stack, facts: RunFacts) -> dict[str, str]:
    """Return the environment of ``mpirun``."""
    return _ENVIRONMENTS[stack.family](facts)


def overridable(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the variables that the user's own environment may override."""
    return frozenset(name for name in environ if not name.lower().endswith(_REQUIRED))


def arguments(stack: Stack, count: int | None, *, hostfile: str | None = None) -> list[str]:
    """Return the options that an mpirun needs besides its environment.

    Args:
        stack: the implementation.
        count: number of ranks; None for none.
        hostfile: path of the host file where slots differ between hosts, else None.
    """
    # Intel MPI reads slots only from a file of the command line
    found = ["-machinefile", hostfile] if hostfile and stack.family is Family.INTEL else []
    if count is not None:
        found += ["-np" if stack.is_open_mpi else "-n", str(count)]
    return found


def _open_mpi(facts: RunFacts) -> dict[str, str]:
    networks = ",".join(facts.networks)
    found = {
        # in a batch job it would take the nodes of that job, and its batch system's way to them
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_ras": _NO_BATCH_SYSTEM,
        "OMPI_MCA_plm_rsh_agent": facts.agent + _FALLBACK,
        # each daemon is started from here, and its agent stays with it
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_plm_rsh_num_concurrent": _MANY,
        "OMPI_MCA_orte_leave_session_attached": "1",
        "OMPI_MCA_orte_default_hostfile": facts.hostfile,
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        # else it resolves each name four times, and no name server knows ours
        "OMPI_MCA_if_base_do_not_resolve": "1",
        # members share a machine with other jobs, so ranks are not bound to processors
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        **_ROOT,
    }
    if networks:
        found["OMPI_MCA_oob_tcp_if_include"] = networks
        found["OMPI_MCA_btl_tcp_if_include"] = networks
    return {**found, **_hierarchy(facts)}


def _prrte(facts: RunFacts) -> dict[str, str]:
    networks = ",".join(facts.networks)
    found = {
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_ras": _NO_BATCH_SYSTEM,
        "PRTE_MCA_plm_ssh_agent": facts.agent + _FALLBACK,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_num_concurrent": _MANY,
        "PRTE_MCA_prte_leave_session_attached": "1",
        "PRTE_MCA_prte_default_hostfile": facts.hostfile,
        "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        **_ROOT,
    }
    if networks:
        found["OMPI_MCA_btl_tcp_if_include"] = networks
    # its daemons never use loopback, whatever the setting
    if networks and not networks.startswith("127.") and facts.largest_index <= _PRRTE_LARGEST_INDEX:
        found["PRTE_MCA_prte_if_include"] = networks
    return {**found, **_hierarchy(facts)}


def _hierarchy(facts: RunFacts) -> dict[str, str]:
    # hierarchical collectives hang where two daemons have the same host name
    return {"OMPI_MCA_coll": "^han"} if facts.one_host else {}


def _mpich(facts: RunFacts) -> dict[str, str]:
    found = {
        "HYDRA_HOST_FILE": facts.hostfile,
        "HYDRA_LAUNCHER": "rsh",
        "HYDRA_LAUNCHER_EXEC": facts.agent,
        # ranks of a container may not read each other's memory, and MPICH aborts there
        "MPIR_CVAR_CH4_CMA_ENABLE": "0",
    }
    if facts.interface:
        found["HYDRA_IFACE"] = facts.interface
    return found


def _intel(facts: RunFacts) -> dict[str, str]:
    found = {
        "I_MPI_HYDRA_HOST_FILE": facts.hostfile,
        "I_MPI_HYDRA_BOOTSTRAP": "rsh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": facts.agent,
        "I_MPI_PIN": "0",
    }
    if facts.slots is not None:
        # else the slots of the host file count
        found["I_MPI_PERHOST"] = str(facts.slots)
    if facts.interface:
        found["I_MPI_HYDRA_IFACE"] = facts.interface
    return found


#: ends of names of variables that users must not override
_REQUIRED = (
    "agent",
    "hostfile",
    "host_file",
    "launcher",
    "launcher_exec",
    "bootstrap",
    "bootstrap_exec",
)

#: jobs in images run as root mostly, which Open MPI must be allowed to
_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_ENVIRONMENTS = {
    Family.OPEN_MPI: _open_mpi,
    Family.OPEN_MPI_PRRTE: _prrte,
    Family.MPICH: _mpich,
    Family.INTEL: _intel,
}


def member_environment(interface: str, *, folder: str | None = None) -> dict[str, str]:
    """Return the environment of a member's daemons and ranks.

    Args:
        interface: network interface through which ranks reach the others.
        folder: the member's own folder, if its host has several members: Open MPI names shared
            memory by host name and local rank, in a folder that they would share.
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
