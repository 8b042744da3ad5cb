"""Files are taken by content: what is there is not sent, what changed is placed."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time

import pytest

from fiber_ssh.exec_channel import agent_archive
from fiber_ssh.remote.wire import Data, pack


def digest(data):
    return hashlib.sha256(data).hexdigest()


class Host:
    """The program that takes files, as a host runs it."""

    def __init__(self, root, archive):
        self.root = root
        self.argv = [sys.executable, "-I", "-S", str(archive), "files", str(root)]

    @contextlib.contextmanager
    def asked(self, files, run="0badcafe", folder=None):
        """The program, and the digests of those files that it wants the content of."""
        with subprocess.Popen(
            self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            entries = [[path, 0o640, digest(data)] for path, data in files.items()]
            process.stdin.write(pack({"run": run, "folder": folder, "files": entries}))
            process.stdin.flush()
            yield process, json.loads(process.stdout.readline() or "{}").get("missing", [])
            process.kill()

    def take(self, files, *, folder=None, spoil=b""):
        """Send files by path and content; what was missing and how many were placed."""
        contents = {digest(data): data for data in files.values()}
        with self.asked(files, folder=folder) as (process, missing):
            for number, name in enumerate(missing):
                data = contents[name] + spoil
                process.stdin.write(pack(Data(number, 0, data, 0)) + pack({"done": number}))
                process.stdin.flush()
            answer = process.stdout.readline()
            if not answer:
                raise RuntimeError(process.stderr.read().decode())
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


def test_files_are_placed_with_their_permissions(host):
    assert host.take({"a/b.txt": b"one", "c": b""}) == (sorted([digest(b"one"), digest(b"")]), 2)

    assert (host.work / "a" / "b.txt").read_bytes() == b"one"
    assert (host.work / "a" / "b.txt").stat().st_mode & 0o777 == 0o640
    assert (host.work / "c").read_bytes() == b""


def test_only_what_changed_is_sent_and_placed_and_equal_files_once(host):
    assert host.take({"a": b"one", "b": b"one"}) == ([digest(b"one")], 2)

    assert host.take({"a": b"one", "b": b"three"}) == ([digest(b"three")], 1)
    assert host.take({"a": b"one", "b": b"three"}) == ([], 0)
    assert host.take({"other": b"three"}) == ([], 1)


def test_a_job_that_changes_its_file_changes_no_other(host, tmp_path):
    host.take({"a": b"one"})
    (host.work / "a").write_bytes(b"spoilt")

    assert host.take({"a": b"one"}) == ([], 1)
    assert host.take({"a": b"one"}, folder=str(tmp_path / "else")) == ([], 1)
    assert (tmp_path / "else" / "a").read_bytes() == b"one"


def test_what_is_not_what_it_should_be_is_refused(host):
    with pytest.raises(RuntimeError, match="changed while it was sent"):
        host.take({"a": b"one"}, spoil=b"x")
    assert [path.name for path in (host.root / "files").iterdir()] == []


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x"])
def test_nothing_is_placed_outside_of_the_folder(host, path):
    with pytest.raises(RuntimeError, match="outside of the working directory"):
        host.take({path: b"one"})


def test_a_folder_that_takes_none_is_named_in_one_sentence(host, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeError) as caught:
        host.take({"a": b"one"}, folder=str(tmp_path / "file" / "in"))
    told = f"they cannot be kept there: Not a directory {tmp_path / 'file' / 'in'}\n"
    assert str(caught.value) == told


def test_content_that_nobody_asked_for_in_a_month_is_removed_unless_somebody_takes_files(host):
    host.take({"a": b"one", "b": b"two"})
    content = host.root / "files" / digest(b"one")

    with host.asked({"a": b"three"}, run="0badcaff") as (_, missing):
        assert missing == [digest(b"three")]
        old = time.time() - 40 * 24 * 3600
        os.utime(content, (old, old))
        assert host.take({"b": b"two"}) == ([], 0)
        assert content.exists()

    host.take({"b": b"two"})
    assert not content.exists()
