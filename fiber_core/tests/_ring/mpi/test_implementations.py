"""MPI implementations are recognised by the output of ``mpirun --version``."""

import pytest

from fiber._base import values
from fiber._ring.mpi.implementations import (
    Family,
    RunFacts,
    Stack,
    arguments,
    environment,
    member_environment,
    overridable,
    recognise,
)
from fiber.exceptions import FiberError

HYDRA = """HYDRA build details:
    Version:                                 5.0.2
    Release Date:                            Fri Sep 25 20:45:26 UTC 2026
    CC:                              cc
"""
INTEL = """Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)
Copyright 2003-2026, Intel Corporation.
"""


@pytest.mark.parametrize(
    "output, family, name",
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs", Family.OPEN_MPI, "Open MPI 4.1.4"),
        ("mpirun (Open MPI) 3.0.0rc1", Family.OPEN_MPI, "Open MPI 3.0.0rc1"),
        ("mpirun (Open MPI) 5.0.11", Family.OPEN_MPI_PRRTE, "Open MPI 5.0.11"),
        ("mpirun (Open MPI) 10.0.1", Family.OPEN_MPI_PRRTE, "Open MPI 10.0.1"),
        ("mpirun (OpenRTE) 2.1.1", Family.OPEN_MPI, "Open MPI 2.1.1"),
        ("prterun (PRRTE) 3.0.13", Family.OPEN_MPI_PRRTE, "Open MPI 3.0.13"),
        (HYDRA, Family.MPICH, "MPICH 5.0.2"),
        (INTEL, Family.INTEL, "Intel MPI 2021.18.1"),
    ],
)
def test_each_is_recognised(output, family, name):
    stack = recognise("mpirun", output)

    assert stack == Stack(family, name.rpartition(" ")[2])
    assert str(stack) == name


@pytest.mark.parametrize("output", ["", "srun: slurm 23.02", "mpirun: command not found"])
def test_unknown_ones_are_refused_with_their_output(output):
    with pytest.raises(
        FiberError, match=r"/opt/mpirun is no mpirun that we know.*--mpirun"
    ) as info:
        recognise("/opt/mpirun", output)

    assert (output or "nothing") in str(info.value)


FACTS = RunFacts(
    agent="/run/rsh",
    hostfile="/run/hostfile",
    networks=("10.0.0.0/16", "10.8.0.0/16"),
    interface="eth1",
    slots=2,
)


def settings(family, ground=FACTS):
    return environment(Stack(family, "1"), ground)


@pytest.mark.parametrize(
    "family, agent, hostfile",
    [
        (Family.OPEN_MPI, "OMPI_MCA_plm_rsh_agent", "OMPI_MCA_orte_default_hostfile"),
        (Family.OPEN_MPI_PRRTE, "PRTE_MCA_plm_ssh_agent", "PRTE_MCA_prte_default_hostfile"),
        (Family.MPICH, "HYDRA_LAUNCHER_EXEC", "HYDRA_HOST_FILE"),
        (Family.INTEL, "I_MPI_HYDRA_BOOTSTRAP_EXEC", "I_MPI_HYDRA_HOST_FILE"),
    ],
)
def test_the_agent_and_the_hosts_are_set_and_open_mpi_may_run_as_root(family, agent, hostfile):
    found = settings(family)

    assert found[hostfile] == "/run/hostfile"
    if family in (Family.MPICH, Family.INTEL):
        assert found[agent] == "/run/rsh"
        return
    # it finds an agent on members that have none
    assert found[agent] == "/run/rsh : true"
    root = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    assert [found[name] for name in root] == ["1", "1"]
    # and binds to no processor
    assert [value for name, value in found.items() if "binding" in name] == ["none"]


@pytest.mark.parametrize("family", Family)
def test_networks_are_set_where_they_are_known(family):
    local = {"10.0.0.0/16,10.8.0.0/16", "eth1"}

    assert local & set(settings(family).values())
    without_networks = RunFacts(agent="/run/rsh", hostfile="/run/hostfile")
    assert not [
        name
        for name in settings(family, without_networks)
        if name.lower().endswith(("include", "iface"))
    ]


@pytest.mark.parametrize(
    "facts, is_set",
    [
        ({"largest_index": 32767}, True),
        ({"largest_index": 32768}, False),
        ({"networks": ("127.0.0.0/8",)}, False),
    ],
    ids=["found", "would not be found", "loopback, which they never use"],
)
def test_daemons_of_prrte_do_not_get_an_interface_that_is_none_for_them(facts, is_set):
    ground = values.evolve(FACTS, **facts)

    found = settings(Family.OPEN_MPI_PRRTE, ground)

    assert ("PRTE_MCA_prte_if_include" in found) == is_set
    # its ranks find any
    assert found["OMPI_MCA_btl_tcp_if_include"] == ",".join(ground.networks)


def test_a_member_gets_its_own_interface_and_on_one_host_its_own_shared_memory():
    apart = member_environment("eth0", folder="/run/m")

    assert (apart["NCCL_SOCKET_IFNAME"], apart["GLOO_SOCKET_IFNAME"]) == ("=eth0", "eth0")
    assert [name for name, value in apart.items() if value == "/run/m"] == [
        "OMPI_MCA_btl_vader_backing_directory",
        "OMPI_MCA_btl_sm_backing_directory",
    ]
    assert not [name for name in member_environment("lo") if "backing" in name]


def test_ranks_of_mpich_do_not_read_each_others_memory_unless_the_user_says_so():
    found = settings(Family.MPICH)

    assert found["MPIR_CVAR_CH4_CMA_ENABLE"] == "0"
    assert "MPIR_CVAR_CH4_CMA_ENABLE" in overridable(found)
    assert not {"HYDRA_HOST_FILE", "HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC"} & overridable(found)


def test_slots_that_differ_stand_in_the_hostfile_alone_and_the_number_of_ranks_is_an_option():
    unlike = values.evolve(FACTS, slots=None)

    assert settings(Family.INTEL)["I_MPI_PERHOST"] == "2"
    assert "I_MPI_PERHOST" not in settings(Family.INTEL, unlike)
    intel, mpich = Stack(Family.INTEL, "1"), Stack(Family.MPICH, "1")
    assert arguments(Stack(Family.OPEN_MPI, "4"), 3) == ["-np", "3"]
    assert arguments(intel, None) == []
    assert arguments(intel, 3, hostfile="/run/hosts") == ["-machinefile", "/run/hosts", "-n", "3"]
    assert arguments(mpich, 3, hostfile="/run/hosts") == ["-n", "3"]
