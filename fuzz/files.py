"""Files that others wrote, or may have: state of jobs, archives, configuration, manifests."""

from __future__ import annotations

import contextlib
import glob
import io
import tarfile
from pathlib import Path
from typing import Any
from unittest import mock

import fiber_ssh.ssh_config
from fiber._agent import rundir
from fiber._agent.supervisor import JOURNAL
from fiber._agent.supervisor.journal import read_ids, read_journal
from fiber._config.sources import read_file
from fiber._ring.command_rings import Record
from fiber._ring.mpi.spec import parse_manifest, run_spec
from fiber.backend_parts import archive as archives
from fiber.backend_parts import liveness
from fiber.backend_parts.first import last_word
from fiber.cli import ring
from fiber.exceptions import BackendError, ConfigError, FiberError, SubmitError
from fiber_k8s.manifest import merge_template, read_template
from fiber_ssh.config import SshConfig
from fiber_ssh.connect import KnownHosts
from fiber_ssh.hosts import read_hosts
from fiber_ssh.remote.runs import offset_of_tail, read_piece
from fuzz.target import empty_folder, file_of, target


@target()
def journal(data: bytes) -> None:
    """A supervisor's journal, cut short or of another version: the jobs whose lines make sense."""
    folder = file_of(data, JOURNAL).parent
    for job in read_journal(folder).values():
        job.status()
        job.living()
        job.job("local", directory=str(folder))
    read_ids(folder)


@target()
def job_files(data: bytes) -> None:
    """Files of runs, rings, claimed folders and programs that ended: what they say, or nothing."""
    folder = file_of(data, "run.json").parent
    rundir.describe(folder)
    file_of(data, liveness.OWNER_FILE)
    liveness.liveness_of(folder)
    liveness.owner_of(folder)
    liveness.Owner.decode(data.decode("utf-8", "replace"))
    file_of(data, "ring.json")
    file_of(data, "status.json")
    last_word(data.decode("utf-8", "replace"))
    Record(folder).metadata()
    Record(folder).status()


@target()
def log_file(data: bytes) -> None:
    """A job's log on its host: pieces of it, up to where it is cut."""
    path = str(file_of(data))
    offset_of_tail(path, 3)
    with open(path, "rb") as file:
        while (piece := read_piece(file)) is not None:
            assert len(piece[1]) <= len(data)


@target(BackendError)
def archive(data: bytes) -> None:
    """An archive out of a job: the file or folder that was asked for, or BackendError and nothing."""
    folder = empty_folder()
    copy = folder / "copy"
    # no made-up header would have the right checksum
    any_sum = mock.patch.object(tarfile, "calc_chksums", return_value=range(-(2**62), 2**62))
    try:
        with any_sum:
            archives.unpack(io.BytesIO(data), "asked", copy, "a pod")
        found = [path for path in (copy, *copy.rglob("*")) if not path.is_symlink()]
        assert all(folder in path.resolve().parents for path in found), "it leads out"
        assert sum(path.stat().st_size for path in found if path.is_file()) <= 64 * len(data)
    except BackendError:
        assert not list(folder.iterdir()), "something is left of it"
        raise
    assert [path.name for path in folder.iterdir()] == ["copy"], "something is left beside it"


@target(ConfigError)
def ssh_config(data: bytes) -> None:
    """A user's ssh configuration: options, or ConfigError; commands and other files are left out."""
    path = file_of(data)
    with (
        mock.patch.object(fiber_ssh.ssh_config, "_succeeds", return_value=True),
        mock.patch.object(glob, "glob", return_value=[]),
    ):
        _ = fiber_ssh.ssh_config.look_up(path, "alpha.example", 1, system=None).key_name


@target()
def known_hosts(data: bytes) -> None:
    """A known_hosts file: the keys of one host; lines that make no sense are nobody's."""
    _ = KnownHosts.read("alpha.example", [str(file_of(data))]).algorithms


@target(ConfigError)
def ssh_hosts(data: bytes) -> None:
    """A hosts file, of ours or as MPI has them, or a list of hosts: hosts, or ConfigError."""
    with contextlib.suppress(ConfigError):
        read_hosts(SshConfig(hosts=data.decode("utf-8", "replace")))
    read_hosts(SshConfig(hosts=str(file_of(data))))


@target(ConfigError)
def settings(data: bytes) -> None:
    """A ``.fiberconfig`` or ``pyproject.toml``: settings, or ConfigError."""
    folder = empty_folder()
    name = ".fiberconfig" if data[:1] == b"\0" else "pyproject.toml"
    Path(folder, name).write_bytes(data[1:])
    read_file(folder, [folder])


@target(FiberError)
def mpi_manifest(data: bytes) -> None:
    """An MPIJob: the specification of its run, or FiberError."""
    text: Any = io.StringIO(data.decode("utf-8", "replace"))
    text.name = "job.yaml"
    run_spec(parse_manifest(ring._parsed(text)), 1)


@target(SubmitError)
def pod_template(data: bytes) -> None:
    """A pod template: a pod with its fields as defaults, or SubmitError."""
    own: Any = {"metadata": {"name": "n", "labels": {}}, "spec": {"containers": [{"name": "main"}]}}
    merge_template(own, read_template(str(file_of(data))))
