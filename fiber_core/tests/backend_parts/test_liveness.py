"""An owner is dead where that is proven, and in no other case."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import owners
from commands import ran
from fiber.backend_parts import liveness
from fiber.backend_parts.liveness import (
    OWNER_FILE,
    Claim,
    Liveness,
    Observation,
    Owner,
    is_same,
    liveness_of,
    owner_of,
    remove_claimed,
    start_time,
    this_place,
)

ALIVE, DEAD, UNKNOWN = Liveness.ALIVE, Liveness.DEAD, Liveness.UNKNOWN
CLAIM = """
import sys
from fiber.backend_parts.liveness import Claim, Owner
claim = Claim(sys.argv[1])
print(Owner.current().encode(), flush=True)
"""
FORK = """
import os
if os.fork():
    os._exit(0)
"""


@pytest.fixture
def dead():
    """A process of this PID namespace that has ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        started = start_time(process.pid) or 1.0
    return Owner.current()._replace(pid=process.pid, started=started)


def failing(code):
    """A function of the system that fails."""

    def fail(*_):
        raise OSError(code, os.strerror(code))

    return fail


@pytest.fixture
def claimed(tmp_path):
    """A folder of this process, whose file can be written anew."""
    claim = Claim(tmp_path)
    yield tmp_path
    claim.release()


def rewritten(folder, **changes):
    path = folder / OWNER_FILE
    found = json.loads(path.read_text())
    owner = Owner.decode(json.dumps(found["owner"]))._replace(**changes)
    path.write_text(json.dumps({**found, "owner": owner}))


class TestProcesses:
    def test_group_ids_are_no_owner(self):
        assert not is_same(0, 1.0)
        assert not is_same(-1, 1.0)

    def test_this_process_lives(self):
        assert Owner.current().liveness() is ALIVE
        assert Owner.decode(Owner.current().encode()) == Owner.current()

    def test_one_that_has_ended_is_dead(self, dead):
        assert dead.liveness() is DEAD

    def test_one_whose_number_another_process_has_is_dead(self):
        assert Owner.current()._replace(started=1.0).liveness() is DEAD

    def test_a_zombie_is_dead(self):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert Owner.current()._replace(pid=pid).liveness() is DEAD
        os.waitpid(pid, 0)

    @pytest.mark.parametrize("part", range(3), ids=["host", "boot", "PID namespace"])
    def test_the_liveness_of_a_remote_owner_is_unknown(self, dead, part):
        words = dead.place.split("/")
        words[part] = "another"
        assert dead._replace(place="/".join(words)).liveness() is UNKNOWN
        assert Owner.current()._replace(place="/".join(words)).liveness() is UNKNOWN

    def test_without_a_place_nothing_is_known(self, dead, monkeypatch):
        monkeypatch.setattr(liveness, "_boot", failing(errno.ENOENT))
        assert this_place() == ""
        assert dead._replace(place="").liveness() is UNKNOWN

    def test_one_that_cannot_be_looked_at_is_not_dead(self, monkeypatch):
        monkeypatch.setattr(liveness, "_read_start", failing(errno.EMFILE))
        assert Owner.current().liveness() is UNKNOWN

    @pytest.mark.parametrize("pid", [0, -1, 2**31, 2**70])
    def test_what_is_no_number_of_a_process_proves_nothing(self, dead, pid):
        assert dead._replace(pid=pid).liveness() is UNKNOWN

    @pytest.mark.parametrize(
        "text", ["", "[1", "{}", '["a"]', '["a", "1", 1.0, "h"]', '["a", 1, "x", "h"]']
    )
    def test_an_invalid_record_names_no_owner(self, text):
        assert Owner.decode(text) is None

    def test_changing_the_clock_expires_no_owner(self, monkeypatch):
        before = Owner.current()
        # start times count from the boot, not from what the clock says of it
        monkeypatch.setattr("time.time", lambda: 0.0)
        assert before.liveness() is ALIVE

    def test_one_in_another_pid_namespace_is_judged_there_alone(self, tmp_path):
        owners.need()
        with owners.running(CLAIM, str(tmp_path)) as text:
            theirs = Owner.decode(text)
            assert theirs.place != this_place()
            assert theirs.liveness() is UNKNOWN
        assert theirs.liveness() is UNKNOWN

    def test_a_proc_of_another_pid_namespace_is_no_place(self, tmp_path):
        owners.need()
        words = ["unshare", "--pid", "--fork", sys.executable, "-c", CLAIM, tmp_path]
        found = ran(words, check=True)
        assert Owner.decode(found.stdout).place == ""


class TestFolders:
    def test_one_that_this_process_claimed_is_alive(self, claimed):
        assert liveness_of(claimed) is ALIVE
        assert owner_of(claimed) == Owner.current()
        assert (claimed / OWNER_FILE).stat().st_mode & 0o777 == 0o600

    def test_one_without_a_claim_is_unknown(self, tmp_path):
        assert liveness_of(tmp_path) is UNKNOWN
        assert owner_of(tmp_path) is None
        (tmp_path / OWNER_FILE).write_text('{"owner": [')
        assert liveness_of(tmp_path) is UNKNOWN
        assert owner_of(tmp_path) is None

    def test_one_of_another_pid_namespace_is_alive_until_its_owner_ends(self, tmp_path):
        owners.need()
        with owners.running(CLAIM, str(tmp_path)):
            assert liveness_of(tmp_path) is ALIVE
        assert liveness_of(tmp_path) is DEAD

    def test_one_of_another_boot_is_dead_once_its_lock_is_free(self, claimed):
        rewritten(claimed, place="vm/an-earlier-boot/1/1")
        assert liveness_of(claimed) is ALIVE
        copy = claimed / "copy"
        copy.mkdir()
        # the disk is as it was, the lock was the kernel's
        (copy / OWNER_FILE).write_text((claimed / OWNER_FILE).read_text())
        assert liveness_of(copy) is DEAD

    @pytest.mark.parametrize("which", ["shared for owner", "shared for observer", "without locks"])
    def test_a_file_system_that_others_share_or_without_locks_proves_nothing(
        self, tmp_path, monkeypatch, which
    ):
        is_shared = which == "shared for owner"
        monkeypatch.setattr(liveness, "_is_local", lambda _: not is_shared)
        claim = Claim(tmp_path)
        rewritten(tmp_path, place="another/host/1/1")
        claim.release()
        is_shared = which == "shared for observer"
        if which == "without locks":
            monkeypatch.setattr("fcntl.flock", failing(errno.ENOLCK))
        assert liveness_of(tmp_path) is UNKNOWN

    def test_one_can_be_claimed_where_there_are_no_locks(self, tmp_path, monkeypatch):
        monkeypatch.setattr("fcntl.flock", failing(errno.ENOLCK))
        Claim(tmp_path).release()
        assert liveness_of(tmp_path) is ALIVE

    def test_children_that_hold_the_lock_do_not_make_an_owner_alive_that_is_not(self, tmp_path):
        with owners.running(CLAIM + FORK, str(tmp_path), inside=False) as text:
            parent = Owner.decode(text)
            while parent.liveness() is not DEAD:
                pass
            assert liveness_of(tmp_path) is DEAD

    def test_a_child_goes_on_in_its_parents_place(self, tmp_path):
        with owners.running(
            CLAIM + FORK + "claim.rewrite(); print(flush=True)", str(tmp_path), inside=False
        ) as text:
            parent = Owner.decode(text)
            while parent.liveness() is not DEAD or owner_of(tmp_path) == parent:
                pass
            assert liveness_of(tmp_path) is ALIVE

    def test_a_symbolic_link_names_no_owner(self, claimed, tmp_path):
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / OWNER_FILE).symlink_to(claimed / OWNER_FILE)
        assert liveness_of(folder) is UNKNOWN

    def test_removing_one_takes_all_and_its_owners_name_last(self, tmp_path):
        folder = tmp_path / "folder"
        (folder / "code").mkdir(parents=True)
        (folder / "link").symlink_to(tmp_path)
        claim = Claim(folder)
        for _ in range(2):
            remove_claimed(folder)
        assert (folder.exists(), tmp_path.exists()) == (False, True)
        claim.release()

    def test_only_what_is_proven_is_swept(self, capsys):
        found = {"a": ALIVE, "b": DEAD, "c": UNKNOWN, "d": DEAD}
        tried = []

        def remove(name):
            tried.append(name)
            return name != "d"

        assert liveness.sweep(found, found.__getitem__, remove) == ["b"]
        assert tried == ["b", "d"]


class TestFileSystems:
    MOUNTS = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "23 22 0:5 / /tmp/a\\040b rw shared:1 - tmpfs tmpfs rw\n"
        "24 22 0:6 / /home rw - nfs4 server:/home rw\n"
        "25 24 8:2 / /home/me rw - xfs /dev/sdb rw\n"
        "26 25 0:7 / /home/me rw - fuse.sshfs far rw\n"
    )

    @pytest.mark.parametrize(
        "folder, is_local",
        [
            ("/var/tmp", True),
            ("/tmp/a b/c", True),
            ("/homeless", True),
            ("/home", False),
            ("/home/you/x", False),
            # the one that was mounted last hides the other
            ("/home/me/x", False),
        ],
    )
    def test_groups_are_found_by_their_mounts(self, monkeypatch, folder, is_local):
        monkeypatch.setattr(Path, "read_text", lambda *_: self.MOUNTS)
        monkeypatch.setattr(os.path, "realpath", lambda path: path)
        assert liveness._is_local(folder) is is_local


@pytest.mark.parametrize(
    "looks, unchanged",
    [
        pytest.param([(100, "x"), (102, "x"), (105, "x")], 5.0, id="from the first look"),
        pytest.param([(100, "x"), (102, "y"), (104, "y")], 2.0, id="anew after a change"),
        pytest.param([(100, "x"), (102, None), (104, "x")], 0.0, id="anew after it was gone"),
        pytest.param([(100, "x"), "failed", (102, "x")], 0.0, id="anew after a failed look"),
        pytest.param([(100, "x"), (103.5, "x")], 0.0, id="anew after a late look"),
        pytest.param([(100, "x"), (103.5, "x"), (105, "x")], 1.5, id="and on from there"),
    ],
)
def test_the_time_counts_for_which_a_value_was_seen_unchanged(looks, unchanged):
    seen = Observation(gap=3.0)
    assert seen.unchanged("a") == 0.0
    for look in looks:
        if look == "failed":
            seen.failed()
        else:
            now, value = look
            seen.looked({"b": 1} if value is None else {"a": value, "b": 1}, float(now))
    assert seen.unchanged("a") == unchanged


def test_who_knows_its_place_need_not_have_it_found_out_again(monkeypatch):
    here, alive = this_place(), Owner.current()
    monkeypatch.setattr(liveness, "this_place", lambda: pytest.fail("it was looked up"))
    assert alive.liveness(here) is Liveness.ALIVE
    assert alive._replace(started=1.0).liveness(here) is Liveness.DEAD
    assert alive.liveness("elsewhere") is Liveness.UNKNOWN
    # where it cannot be found out nothing is proven
    assert alive._replace(place="").liveness("") is Liveness.UNKNOWN
