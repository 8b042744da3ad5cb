"""Images go to registries and come from them with the credentials of the docker command."""

import contextlib
import json

import pytest

import registry
from fiber.exceptions import BackendError, SubmitError
from fiber.model import JobSpec
from require import need

HELPER = """\
#!/bin/sh
# what the docker command asks for credentials of a store
[ "$1" = get ] && echo '{{"ServerURL": "{address}", "Username": "{user}", "Secret": "{password}"}}'
"""


@pytest.fixture
def images(tmp_path):
    need("registry", registry.missing())
    folder = tmp_path / "registry"
    folder.mkdir()
    with registry.started(folder) as running:
        yield running


@pytest.fixture
def docker_config(tmp_path, monkeypatch):
    """Writes the configuration of the docker command, which is empty at first."""
    folder = tmp_path / "config"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))

    def write(content):
        (folder / "config.json").write_text(json.dumps(content))

    write({})
    return write


@pytest.fixture
def folder(engine, tmp_path):
    """A folder with a Dockerfile."""
    made = tmp_path / "pi"
    made.mkdir()
    (made / "Dockerfile").write_text("FROM scratch\nCOPY word /word\n")
    (made / "word").write_text(f"of {tmp_path}\n")
    return str(made)


@pytest.fixture
def is_pulled(engine, open_backend, run_id):
    """Whether a job of an image, which is removed from the engine, has the engine pull it."""

    def ask(image):
        with contextlib.closing(engine.docker()) as client:
            client.images.remove(image, force=True)
            backend = open_backend(pull="missing")
            # the image holds no program, so it is not run
            backend.submit(JobSpec(run_id=run_id, name="n", argv=("/word",), image=image))
            found = any(image in (one.tags or ()) for one in client.images.list())
            client.images.remove(image, force=True)
            return found

    return ask


@pytest.fixture(params=["configuration", "helper"])
def _credentials(request, images, docker_config, tmp_path, monkeypatch):
    if request.param == "configuration":
        docker_config({"auths": {images.address: {"auth": images.auth()}}})
        return
    helper = tmp_path / "docker-credential-tests"
    helper.write_text(
        HELPER.format(address=images.address, user=registry.USER, password=registry.PASSWORD)
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    docker_config({"credHelpers": {images.address: "tests"}})


@pytest.mark.usefixtures("_credentials")
def test_credentials_push_and_pull(images, folder, open_backend, is_pulled):
    image = open_backend(registry=f"{images.address}/team").prepare_image(folder)

    assert image.startswith(f"{images.address}/team/pi:")
    assert is_pulled(image)


def test_without_credentials_the_registry_is_quoted(
    images, docker_config, folder, open_backend, is_pulled
):
    with pytest.raises(BackendError, match=r"could not push .*no basic auth credentials"):
        open_backend(registry=images.address).prepare_image(folder)

    docker_config({"auths": {images.address: {"auth": images.auth()}}})
    image = open_backend(registry=images.address).prepare_image(folder)
    docker_config({})
    with pytest.raises(SubmitError, match=r"pi:.*cannot be pulled.*no basic auth credentials"):
        is_pulled(image)
