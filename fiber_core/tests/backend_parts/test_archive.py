"""Archives of which not a word is true: what ``fiber cp`` writes of them."""

import io
import tarfile
import tempfile
import tracemalloc

import pytest

from fiber.backend_parts.archive import name_of, parse_places, unpack
from fiber.exceptions import BackendError

TYPES = {":": tarfile.DIRTYPE, "->": tarfile.SYMTYPE, "=": tarfile.LNKTYPE, "|": tarfile.FIFOTYPE}


def archive(words):
    """An archive of members such as ``a:`` (a folder), ``a/b`` (a file) and ``a/c -> b``."""
    data = b""
    for word in words.split(", "):
        kind = next((kind for kind in TYPES if kind in word), "?")
        member = tarfile.TarInfo(word.partition(kind)[0].strip())
        member.type, member.linkname = TYPES.get(kind, b"0"), word.partition(kind)[2].strip()
        data += member.tobuf()
    return io.BytesIO(data)


@pytest.mark.parametrize(
    "words",
    [
        *(".bashrc", "/model", "model, .bashrc", "model, model/a", "model:, model/../a"),
        *("model:, model/a, model/a", "model:, model/a |"),
        # links that lead out, also by way of others, and what would be written through them
        *("model -> ../.ssh", "model:, model/a -> ../b", "model:, model/a -> /etc"),
        *("model:, model/a = ../a", "model:, model/a -> .., model/a/b"),
        "model:, model/a -> ., model/b -> a/../..",
        "model:, model/1:, model/a -> ., model/a/1/b -> ../..",
    ],
)
def test_an_archive_with_more_than_was_asked_for_leaves_a_home_as_it_was(tmp_path, words):
    with pytest.raises(BackendError, match="pod p sent for 'model' is not taken"):
        unpack(archive(words), "model", tmp_path, "pod p")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "fields, why",
    [
        ({"pax_headers": {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(2**27)}}, "has holes"),
        ({"type": tarfile.XHDTYPE, "size": 2**32}, "headers of more than 1048576 bytes"),
    ],
)
def test_few_bytes_that_stand_for_many_are_neither_written_nor_kept(tmp_path, fields, why):
    member = tarfile.TarInfo("model")
    for name, value in fields.items():
        setattr(member, name, value)
    with pytest.raises(BackendError, match=why):
        unpack(io.BytesIO(member.tobuf()), "model", tmp_path, "pod p")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [2**30, 512], ids=["a large one", "many small ones"])
def test_headers_without_end_are_not_kept(tmp_path, size):
    header = tarfile.TarInfo("model")
    header.type, header.size = tarfile.XHDTYPE, size
    pattern = header.tobuf() + bytes(512)

    class Endless(io.BytesIO):
        taken = 0

        def read(self, size):
            start = self.taken % len(pattern)
            self.taken += size
            return (pattern * (size // len(pattern) + 2))[start : start + size]

    stream = Endless()
    with pytest.raises(BackendError, match="nothing was copied"):
        unpack(stream, "model", tmp_path, "pod p")
    assert stream.taken <= 2**21


def test_headers_of_a_member_are_not_kept_after_it(tmp_path):
    def members():
        for number in range(50):
            info = tarfile.TarInfo(f"folder/{number}" if number else "folder")
            info.type = tarfile.REGTYPE if number else tarfile.DIRTYPE
            info.pax_headers = {"comment": "x" * 500_000}
            yield info

    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for info in members():
                archive.addfile(info)
                archive.members.clear()
        file.seek(0)
        tracemalloc.start()
        try:
            unpack(file, "folder", tmp_path, "a stranger")
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(list((tmp_path / "folder").iterdir())) == 49
    assert most < 10 * 500_000


def test_each_member_may_have_large_headers_and_any_content(tmp_path):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as writing:
        folder = tarfile.TarInfo("model")
        folder.type = tarfile.DIRTYPE
        writing.addfile(folder)
        for name in ("model/a", "model/b"):
            member = tarfile.TarInfo(name)
            member.size, member.pax_headers = 2**21, {"comment": "x" * 900_000}
            writing.addfile(member, io.BytesIO(bytes(2**21)))
    made.seek(0)
    unpack(made, "model", tmp_path, "pod p")
    assert [(tmp_path / "model" / name).stat().st_size for name in "ab"] == [2**21, 2**21]


def test_links_inside_of_a_folder_come_with_it(tmp_path):
    words = "model:, model/a:, model/a/b, model/c -> a/b, model/a/d -> ../c, model/e = model/a/b"
    unpack(archive(words), "model", tmp_path / "x", "pod p")
    assert (tmp_path / "x/a/d").resolve() == tmp_path / "x/a/b"
    assert (tmp_path / "x/e").samefile(tmp_path / "x/a/b")


@pytest.mark.parametrize("path, name", [("/etc/hosts", "hosts"), ("a/b/", "b"), ("/", "root")])
def test_a_copy_has_the_name_of_its_source(path, name):
    assert name_of(path) == name


def test_an_archive_of_nothing_is_refused(tmp_path):
    with pytest.raises(BackendError, match="it is empty"):
        unpack(io.BytesIO(bytes(1024)), "model", tmp_path, "pod p")


def test_one_of_source_and_target_is_elsewhere():
    assert parse_places("volume:/a", "./a:b", "on a volume") == (("volume", "/a"), None)
    assert parse_places("a", "volume:", "on a volume") == (None, ("volume", ""))
    for places in (("a", "b"), ("one:a", "other:b")):
        with pytest.raises(BackendError, match="must be on a volume"):
            parse_places(*places, "on a volume")
