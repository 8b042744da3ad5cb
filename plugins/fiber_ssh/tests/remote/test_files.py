"""Files are taken by content: what is there is not sent, what changed is placed."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time

import pytest

from fiber_ssh.agent_archive import agent_archive
from fiber_ssh.remote.wire import pack, pack_data


class Host:
    """The program that takes files, as a host runs it."""

    def __init__(self, root, archive):
        self.root = root
        self.archive = archive

    @contextlib.contextmanager
    def taking(self):
        """Somebody who takes files until the block ends."""
        with subprocess.Popen(
            [sys.executable, "-I", "-S", str(self.archive), "files", str(self.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            entry = ["a", 0o640, "0" * 64]
            process.stdin.write(pack({"run": "0badcaff", "folder": None, "files": [entry]}))
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["missing"]
            yield
            process.kill()

    def take(self, files, *, folder=None, spoil=False):
        """Send files by path and content; what was missing and how many were placed."""
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(self.archive), "files", str(self.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        contents = {hashlib.sha256(data).hexdigest(): data for data in files.values()}
        entries = [[p, 0o640, hashlib.sha256(data).hexdigest()] for p, data in files.items()]
        with process:
            order = {"run": "0badcafe", "folder": folder, "files": entries}
            process.stdin.write(pack(order))
            process.stdin.flush()
            missing = json.loads(process.stdout.readline() or "{}").get("missing", [])
            for number, digest in enumerate(missing):
                data = contents[digest] + (b"x" if spoil else b"")
                process.stdin.write(pack_data(number, 0, data, 0) + pack({"done": number}))
                process.stdin.flush()
            answer = process.stdout.readline()
            error = process.stderr.read().decode()
        if not answer:
            raise RuntimeError(error)
        return sorted(missing), json.loads(answer)["placed"]

    @property
    def work(self):
        return self.root / "runs" / "0badcafe" / "work"


@pytest.fixture
def host(tmp_path):
    archive = tmp_path / "agent.zip"
    archive.write_bytes(agent_archive()[1])
    (tmp_path / "root").mkdir()
    return Host(tmp_path / "root", archive)


def digest(data):
    return hashlib.sha256(data).hexdigest()


def test_files_are_placed_with_their_permissions(host):
    assert host.take({"a/b.txt": b"one", "c": b""}) == (sorted([digest(b"one"), digest(b"")]), 2)

    assert (host.work / "a" / "b.txt").read_bytes() == b"one"
    assert (host.work / "a" / "b.txt").stat().st_mode & 0o777 == 0o640
    assert (host.work / "c").read_bytes() == b""


def test_only_what_changed_is_sent_and_placed(host):
    host.take({"a": b"one", "b": b"two"})

    assert host.take({"a": b"one", "b": b"three"}) == ([digest(b"three")], 1)
    assert host.take({"a": b"one", "b": b"three"}) == ([], 0)
    assert host.take({"other": b"two"}) == ([], 1)


def test_equal_files_are_sent_once(host):
    assert host.take({"a": b"same", "b": b"same"}) == ([digest(b"same")], 2)


def test_a_job_that_changes_its_file_changes_no_other(host, tmp_path):
    host.take({"a": b"one"})
    (host.work / "a").write_bytes(b"spoilt")

    assert host.take({"a": b"one"}) == ([], 1)
    assert host.take({"a": b"one"}, folder=str(tmp_path / "else")) == ([], 1)
    assert (tmp_path / "else" / "a").read_bytes() == b"one"


def test_what_is_not_what_it_should_be_is_refused(host):
    with pytest.raises(RuntimeError, match="changed while it was sent"):
        host.take({"a": b"one"}, spoil=True)
    assert [path.name for path in (host.root / "files").iterdir()] == []


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x"])
def test_nothing_is_placed_outside_of_the_folder(host, path):
    with pytest.raises(RuntimeError, match="outside of the working directory"):
        host.take({path: b"one"})


def test_content_that_nobody_asked_for_in_a_month_is_removed(host):
    host.take({"a": b"one", "b": b"two"})
    old = time.time() - 40 * 24 * 3600
    os.utime(host.root / "files" / digest(b"one"), (old, old))

    assert host.take({"b": b"two"}) == ([], 0)
    assert not (host.root / "files" / digest(b"one")).exists()


def test_content_stays_while_somebody_else_takes_files(host):
    host.take({"a": b"one", "b": b"two"})
    content = host.root / "files" / digest(b"one")

    with host.taking():
        old = time.time() - 40 * 24 * 3600
        os.utime(content, (old, old))
        host.take({"b": b"two"})
        assert content.exists()

    host.take({"b": b"two"})
    assert not content.exists()
