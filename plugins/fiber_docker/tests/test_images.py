"""How images are called when an engine is asked for them."""

import pytest

from fiber.exceptions import SubmitError
from fiber_docker.images import _parts


@pytest.mark.parametrize(
    "image,parts",
    [
        ("a", ("a", "latest")),
        ("a:1", ("a", "1")),
        ("host:5000/a/b", ("host:5000/a/b", "latest")),
        ("host:5000/a/b:1", ("host:5000/a/b", "1")),
        (f"a@sha256:{'0' * 64}", ("a", f"sha256:{'0' * 64}")),
    ],
)
def test_a_name_has_a_repository_and_a_tag(image, parts):
    assert _parts(image) == parts


def test_an_invalid_name_is_refused_before_any_call_of_the_engine():
    with pytest.raises(SubmitError, match="small letters"):
        _parts("MyImage")
