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


def forget(engine, image):
    """Remove an image from the engine, so that it has to be pulled."""
    with contextlib.closing(engine.docker()) as client:
        client.images.remove(image, force=True)


def is_there(engine, image):
    with contextlib.closing(engine.docker()) as client:
        return any(image in (found.tags or ()) for found in client.images.list())


def pulled(engine, open_backend, run_id, image):
    """Whether a job of an image has the engine pull it."""
    backend = open_backend(pull="missing")
    # the image holds no program, so it is not run
    backend.submit(JobSpec(run_id=run_id, name="n", argv=("/word",), image=image))
    return is_there(engine, image)


def test_without_credentials_the_registry_is_quoted(images, docker_config, folder, open_backend):
    backend = open_backend(registry=f"{images.address}/team")

    with pytest.raises(BackendError, match=r"could not push .*no basic auth credentials"):
        backend.prepare_image(folder)


def test_credentials_in_the_configuration_push_and_pull(
    images, docker_config, folder, open_backend, engine, run_id
):
    docker_config({"auths": {images.address: {"auth": images.auth()}}})
    image = open_backend(registry=f"{images.address}/team").prepare_image(folder)
    forget(engine, image)

    assert image.startswith(f"{images.address}/team/pi:")
    assert pulled(engine, open_backend, run_id, image)
    forget(engine, image)


def test_credentials_of_a_helper_push_and_pull(
    images, docker_config, folder, open_backend, engine, run_id, tmp_path, monkeypatch
):
    programs = tmp_path / "bin"
    programs.mkdir()
    helper = programs / "docker-credential-tests"
    helper.write_text(
        HELPER.format(address=images.address, user=registry.USER, password=registry.PASSWORD)
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    docker_config({"credHelpers": {images.address: "tests"}})

    image = open_backend(registry=images.address).prepare_image(folder)
    forget(engine, image)

    assert pulled(engine, open_backend, run_id, image)
    forget(engine, image)


def test_an_image_that_may_not_be_pulled_is_named_with_the_registrys_words(
    images, docker_config, folder, open_backend, engine, run_id
):
    docker_config({"auths": {images.address: {"auth": images.auth()}}})
    image = open_backend(registry=images.address).prepare_image(folder)
    forget(engine, image)
    docker_config({})

    with pytest.raises(SubmitError, match=r"pi:.*cannot be pulled.*no basic auth credentials"):
        pulled(engine, open_backend, run_id, image)
