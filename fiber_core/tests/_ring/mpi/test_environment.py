"""The same facts in the settings of each MPI implementation."""

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
)

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
def test_the_agent_and_the_hosts_are_set(family, agent, hostfile):
    found = settings(family)

    assert found[agent].split(" : ")[0] == "/run/rsh"
    assert found[hostfile] == "/run/hostfile"


@pytest.mark.parametrize("family", [Family.OPEN_MPI, Family.OPEN_MPI_PRRTE])
def test_daemons_of_open_mpi_find_an_agent_on_members_that_have_none(family):
    (agent,) = [value for name, value in settings(family).items() if name.endswith("_agent")]

    assert agent == "/run/rsh : true"


@pytest.mark.parametrize("family", [Family.OPEN_MPI, Family.OPEN_MPI_PRRTE])
def test_open_mpi_may_run_as_root_and_binds_to_no_processor(family):
    found = settings(family)

    assert (found["OMPI_ALLOW_RUN_AS_ROOT"], found["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"]) == ("1", "1")
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


def test_daemons_of_prrte_do_not_get_loopback_which_they_never_use():
    local = RunFacts(agent="/run/rsh", hostfile="/run/hostfile", networks=("127.0.0.0/8",))

    found = settings(Family.OPEN_MPI_PRRTE, local)

    assert "PRTE_MCA_prte_if_include" not in found
    assert found["OMPI_MCA_btl_tcp_if_include"] == "127.0.0.0/8"


def test_intel_mpi_gets_the_slots():
    assert settings(Family.INTEL)["I_MPI_PERHOST"] == "2"


def test_the_number_of_ranks_is_an_option_of_each():
    assert arguments(Stack(Family.OPEN_MPI, "4"), 3) == ["-np", "3"]
    assert arguments(Stack(Family.MPICH, "4"), 3) == ["-n", "3"]
    assert arguments(Stack(Family.INTEL, "2021"), None) == []


def test_a_member_gets_its_own_interface():
    assert member_environment("eth0")["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert member_environment("eth0")["GLOO_SOCKET_IFNAME"] == "eth0"


def test_members_of_one_host_share_no_memory_under_one_name():
    apart = member_environment("lo", folder="/run/m")

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


def test_slots_that_differ_stand_in_the_hostfile_alone():
    unlike = values.evolve(FACTS, slots=None)

    assert settings(Family.INTEL)["I_MPI_PERHOST"] == "2"
    assert "I_MPI_PERHOST" not in settings(Family.INTEL, unlike)
    intel, mpich = Stack(Family.INTEL, "1"), Stack(Family.MPICH, "1")
    assert arguments(intel, 3, hostfile="/run/hosts") == ["-machinefile", "/run/hosts", "-n", "3"]
    assert arguments(mpich, 3, hostfile="/run/hosts") == ["-n", "3"]
