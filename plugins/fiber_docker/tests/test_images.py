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


@pytest.mark.parametrize(
    "files,words", [([], "no Dockerfile"), (["a.docker", "b.docker"], "a.docker, b.docker")]
)
def test_none_or_several_is_an_error_that_says_so(tmp_path, files, words):
    for name in files:
        (tmp_path / name).touch()

    with pytest.raises(BackendError, match=words):
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
