"""A forked process's channel belongs to it alone, and to one client at a time."""

import os
import socket

import pytest

from fiber._agent.supervisor import inherited
from supervised import exit_code_of


@pytest.fixture
def inheritance(monkeypatch):
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(inherited, "_inheritance", None)
    monkeypatch.setattr(inherited, "_claimed", False)
    made = inherited.Inheritance(
        channel=ours, run_directory="/run", supervisor=1, job_id="a", index=0, pid=os.getpid()
    )
    inherited.inherit(made)
    yield made
    ours.close()
    theirs.close()


def test_a_master_has_none():
    assert inherited.inherited_channel() is None
    assert inherited.claim_channel("/run") is None


def test_a_process_finds_what_it_inherited(inheritance):
    assert inherited.inherited_channel() is inheritance


def test_one_client_has_it_at_a_time(inheritance):
    first = inherited.claim_channel("/run")
    assert first is not None
    assert inherited.claim_channel("/run") is None

    first.close()
    inherited.release_channel()

    second = inherited.claim_channel("/run")
    assert second is not None
    second.close()


def test_it_is_for_jobs_of_its_own_run(inheritance):
    assert inherited.claim_channel("/another") is None


def test_a_fork_of_the_process_has_no_part_in_it(inheritance):
    assert exit_code_of(lambda: inherited.inherited_channel() is not None) == 0
