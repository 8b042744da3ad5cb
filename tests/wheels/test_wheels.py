"""All distributions build, hold what they should, and work where there is no checkout."""

import email
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from commands import ran

ROOT = Path(__file__).parents[2]
BACKENDS = ("docker", "k8s", "local", "slurm", "ssh")
FOLDERS = {
    "fiber-core": ROOT / "fiber_core",
    **{f"fiber-{name}": ROOT / "plugins" / f"fiber_{name}" for name in BACKENDS},
}
PACKAGES = {"fiber-core": "fiber", **{f"fiber-{name}": f"fiber_{name}" for name in BACKENDS}}

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(300)]

PROGRAM = """
import json
import sys

import fiber as mp


def square(number):
    return number * number


if __name__ == "__main__":
    with mp.Pool(2) as pool:
        squares = pool.map(square, range(10))
    print(json.dumps({"file": mp.__file__, "squares": squares, "backend": mp.get_backend().name}))
"""


def outside():
    """An environment in which nothing points at the checkout."""
    return {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    for source in FOLDERS.values():
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source]
        # the source distribution first and the wheel from that, so that both are proven
        subprocess.run(command, check=True, capture_output=True, timeout=200)
    return {name: next(folder.glob(f"{name.replace('-', '_')}-*.whl")) for name in FOLDERS}


@pytest.fixture(scope="module")
def python(wheels, tmp_path_factory):
    """The Python of a clean environment into which only the name fiber-core was installed."""
    venv = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=200)
    links = next(iter(wheels.values())).parent
    subprocess.run(
        [venv / "bin" / "pip", "install", "--quiet", "--find-links", links, "fiber-core"],
        check=True,
        cwd=links,
        env=outside(),
        timeout=280,
    )
    return venv / "bin" / "python"


def read(wheel, pattern):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(pattern)]
        return archive.read(name).decode()


def metadata_of(wheel):
    return email.message_from_string(read(wheel, ".dist-info/METADATA"))


@pytest.mark.parametrize("name", FOLDERS)
def test_a_wheel_holds_types_licence_and_every_module_and_says_what_it_is(wheels, name):
    source = FOLDERS[name] / "src"
    expected = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    with zipfile.ZipFile(wheels[name]) as archive:
        found = set(archive.namelist())
    metadata = metadata_of(wheels[name])

    assert f"{PACKAGES[name]}/py.typed" in found
    assert {n for n in found if ".dist-info/" not in n} == expected
    assert "Apache License" in read(wheels[name], "licenses/LICENSE")
    assert wheels[name].name.endswith("-py3-none-any.whl")
    assert metadata["Name"] == name
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_payload().startswith(f"# {name}")


def test_all_have_the_same_version_pin_each_other_and_are_found_by_entry_point(wheels):
    core = metadata_of(wheels["fiber-core"])
    # who installs the core can begin at once, on this machine
    assert f"fiber-local=={core['Version']}" in core.get_all("Requires-Dist")
    for name in BACKENDS:
        wheel = wheels[f"fiber-{name}"]
        metadata = metadata_of(wheel)
        assert metadata["Version"] == core["Version"]
        assert f"fiber-core=={core['Version']}" in metadata.get_all("Requires-Dist")
        assert f"{name} = fiber_{name}.plugin" in read(wheel, "entry_points.txt")


def test_a_pool_works_where_there_is_no_checkout(python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    done = ran([python, program], cwd=tmp_path, env=outside())

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert str(ROOT) not in found.pop("file")
    assert found == {"squares": [n * n for n in range(10)], "backend": "local"}


def test_installing_fiber_core_alone_brings_all_that_is_needed_and_the_command(python):
    subprocess.run([python, "-m", "pip", "check"], check=True, timeout=60)

    done = ran([python.with_name("fiber"), "--version"], env=outside())

    assert "0.1.0" in done.stdout, done.stderr
