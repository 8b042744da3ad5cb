"""Which file describes an image, and how images are called."""

import pytest

from fiber.exceptions import BackendError
from fiber_docker.images import _parts, dockerfile_of


@pytest.mark.parametrize(
    "files,found",
    [
        (["Dockerfile"], "Dockerfile"),
        (["a.docker"], "a.docker"),
        (["Dockerfile", "a.docker", "b.docker"], "Dockerfile"),
    ],
)
def test_the_file_is_found(tmp_path, files, found):
    for name in files:
        (tmp_path / name).touch()

    assert dockerfile_of(tmp_path) == found


def test_a_folder_may_have_none(tmp_path):
    assert dockerfile_of(tmp_path) is None


def test_several_are_an_error_that_names_them(tmp_path):
    for name in ("a.docker", "b.docker"):
        (tmp_path / name).touch()

    with pytest.raises(BackendError, match=r"a\.docker, b\.docker"):
        dockerfile_of(tmp_path)


@pytest.mark.parametrize(
    "image,parts",
    [
        ("a", ("a", "latest")),
        ("a:1", ("a", "1")),
        ("host:5000/a/b", ("host:5000/a/b", "latest")),
        ("host:5000/a/b:1", ("host:5000/a/b", "1")),
        ("a@sha256:00", ("a", "sha256:00")),
    ],
)
def test_a_name_has_a_repository_and_a_tag(image, parts):
    assert _parts(image) == parts
