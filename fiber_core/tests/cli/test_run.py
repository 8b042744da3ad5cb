"""A program starts as a job with the requested options; unsupported ones are refused early."""

import json
import os
import sys

import attrs
import pytest

from fiber._agent import rundir
from fiber.cli.session import Session
from fiber.exceptions import BackendUnavailableError
from fiber.hookspecs import hookimpl
from fiber.images import file_of
from fiber.model import JobSpec, ResourceRequest
from fiber.testing import FakeBackend, programs

PRINT_ENVIRONMENT = """
import json, os
print(json.dumps([os.getcwd(), {k: v for k, v in os.environ.items() if k.startswith("FIBER_")}]))
"""


class Spy:
    """A plugin that records submitted specifications."""

    def __init__(self):
        self.specs = []

    @hookimpl(wrapper=True)
    def fiber_submit_job(self, spec):
        self.specs.append(spec)
        return (yield)


@pytest.fixture
def spy(fiber):
    made = Spy()
    fiber.extra.append(made)
    return made


def test_a_refusal_of_the_platform_leaves_nothing(fiber, platform, capable):
    capable(same_host=False)
    platform.refuse("the quota is used up")

    assert "the quota is used up" in fiber.fails("run", "true")
    assert list(rundir.runs()) == []


class TestCommand:
    @pytest.mark.parametrize(
        "words, argv",
        [
            (("echo", "-a", "--name", "x", "--", "y"), ("echo", "-a", "--name", "x", "--", "y")),
            (("--", "echo", "--", "-v", "two  words", ""), ("echo", "--", "-v", "two  words", "")),
        ],
        ids=["first word that is no option", "behind two dashes"],
    )
    def test_its_words_are_kept(self, fiber, spy, words, argv):
        fiber.lines("run", "--name", "n", *words)
        fiber.lines("run", "/usr/bin/env")

        assert (spy.specs[0].argv, spy.specs[0].name) == (argv, "n")
        assert spy.specs[1].name == "env"


class TestEnvironment:
    def test_the_job_has_the_backend_the_settings_and_the_working_directory(
        self, fiber, platform, monkeypatch
    ):
        monkeypatch.setenv("FIBER_BACKEND", "FAKE")
        monkeypatch.setenv("FIBER_START_TIMEOUT", "5")
        monkeypatch.setenv("FIBER_BOOTSTRAP", "fd:7")
        # what the tests themselves are told is no part of this
        for name in ("FIBER_LOCAL_TRANSPORT", "FIBER_REQUIRE"):
            monkeypatch.delenv(name, raising=False)

        fiber.lines("run", sys.executable, "-c", PRINT_ENVIRONMENT)

        (job,) = platform.jobs()
        (text,) = platform.find(job).lines(None, follow=True)
        folder, environ = json.loads(text)
        assert folder == os.getcwd()  # noqa: PTH109  a text is compared
        assert environ.pop("FIBER_RUN") == job.run_id
        assert environ == {"FIBER_BACKEND": "fake", "FIBER_START_TIMEOUT": "5.0"}

    def test_on_another_host_it_gets_the_named_variables_and_no_folder(
        self, fiber, spy, capable, monkeypatch
    ):
        capable(same_host=False)
        monkeypatch.setenv("FIBER_ENV", "TOKEN,ABSENT")
        monkeypatch.setenv("TOKEN", "t")

        fiber.lines("run", "true")

        (spec,) = spy.specs
        assert spec.cwd is None
        own = {"FIBER_BACKEND": "fake", "FIBER_RUN": spec.run_id}
        assert spec.env == {"TOKEN": "t", "FIBER_ENV": "TOKEN,ABSENT", **own}

    def test_variables_may_be_given(self, fiber, spy, monkeypatch):
        monkeypatch.setenv("FIBER_ENV", "TOKEN")
        monkeypatch.setenv("TOKEN", "ours")
        monkeypatch.setenv("SEED", "7")

        fiber.lines("run", "-e", "TOKEN=other", "--env", "SEED", "-e", "EMPTY=", "true")

        env = spy.specs[0].env
        assert (env["TOKEN"], env["SEED"], env["EMPTY"]) == ("other", "7", "")

    def test_a_folder_that_was_removed_is_no_error(self, fiber, spy, tmp_path, monkeypatch):
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()

        done = fiber("run", "true")

        assert (done.exit_code, spy.specs[0].cwd) == (0, None)


class TestResources:
    def test_options_and_settings_are_asked_for_and_are_settings_of_the_job(
        self, fiber, spy, capable, monkeypatch
    ):
        capable(cpu_limit=True, memory_limit=True)
        monkeypatch.setenv("FIBER_CPU", "500m")

        fiber.lines("run", "--memory", "2Gi", "true")

        (spec,) = spy.specs
        assert spec.resources == ResourceRequest(cpu=0.5, memory=2048)
        assert (spec.env["FIBER_CPU"], spec.env["FIBER_MEMORY"]) == ("0.5", "2048")

    def test_gpus_are_devices_of_the_kind_gpu(self, fiber, spy):
        fiber("run", "--gpu", "2", "--device", "fake=1", "true")

        assert spy.specs[0].resources.devices == {"fake": 1, "gpu": 2}

    def test_an_unknown_kind_names_the_known_ones(self, fiber, spy):
        told = fiber.fails("run", "--device", "tpu", "true")

        assert told == (
            "fiber: no resource provider for 'tpu' is installed; installed are fake, gpu\n"
        )
        assert spy.specs == []


@pytest.mark.parametrize("limits, told", [(("cpu", "memory"), []), (("cpu",), ["memory"])])
def test_cpus_and_memory_are_wishes_where_they_are_no_limits(fiber, spy, capable, limits, told):
    capable(**{f"{what}_limit": what in limits for what in ("cpu", "memory")})

    found = fiber("run", "--cpu", "2", "--memory", "64", "true")

    assert found.stderr.splitlines() == [
        f"fiber: fake does not enforce {one}: a job may use more" for one in told
    ]
    assert spy.specs[0].resources == ResourceRequest(cpu=2, memory=64)


class TestRefusals:
    @pytest.mark.parametrize(
        "words,without,told",
        [
            (("-v", "nfs"), "volumes", "-v nfs is not supported by fake (capability 'volumes')"),
            (("--image", "python"), "images", "--image python is not supported by fake"),
            (("--device", "fake"), "devices", "not supported by fake (capability 'devices')"),
            (("-a",), "follow_logs", "--attach is not supported by fake"),
            ((), "detached", "fiber: a job that goes on by itself (run without --attach)"),
        ],
    )
    def test_an_option_that_is_not_supported_is_named(
        self, fiber, spy, capable, words, without, told
    ):
        capable(**{without: False})

        assert told in fiber.fails("run", *words, "true")
        assert spy.specs == []

    def test_an_image_of_the_settings_is_left_out_where_there_are_no_images(
        self, fiber, spy, monkeypatch, capable
    ):
        monkeypatch.setenv("FIBER_IMAGE", "python")

        fiber.lines("run", "true")
        capable(images=True)
        fiber.lines("run", "true")

        assert [spec.image for spec in spy.specs] == [None, "python"]


class TestImages:
    """Where jobs run in images."""

    @pytest.fixture
    def built(self, monkeypatch, capable):
        """Folders that images were built from; jobs run in those images."""
        folders, ran = [], []
        capable(images=True)
        submit = FakeBackend.submit

        def prepare_image(_, context):
            folders.append(context)
            found = file_of(context, "recipe", "*.recipe")
            return None if found is None else f"{found.name}:1"

        def submit_without(backend, spec):
            ran.append(spec.image)
            return submit(backend, attrs.evolve(spec, image=None))

        monkeypatch.setattr(FakeBackend, "prepare_image", prepare_image)
        monkeypatch.setattr(FakeBackend, "submit", submit_without)
        return folders, ran

    @pytest.mark.parametrize(
        "files, words, context, image",
        [
            (["recipe"], (), "", "recipe:1"),
            (["recipe"], ("--image", "other"), None, "other"),
            ([], (), "", None),
            (
                ["recipe", "gpu.recipe"],
                ("--image-file", "gpu.recipe"),
                "gpu.recipe",
                "gpu.recipe:1",
            ),
        ],
        ids=["working directory", "named image", "backend's own", "named file"],
    )
    def test_an_image_is_named_or_built(self, fiber, built, tmp_path, files, words, context, image):
        for file in files:
            (tmp_path / file).touch()

        assert fiber("run", "-a", *words, "true").exit_code == 0
        assert built == ([] if context is None else [str(tmp_path / context)], [image])

    def test_a_file_and_an_image_are_one_too_many(self, fiber, built, tmp_path):
        (tmp_path / "recipe").touch()

        fiber.fails("run", "--image-file", "recipe", "--image", "other", "true", code=2)
        assert "does not exist" in fiber.fails("run", "--image-file", "none", "true", code=2)

    @pytest.mark.parametrize("can_ask", [False, True])
    def test_a_person_is_asked_which_of_several_files(
        self, fiber, built, tmp_path, monkeypatch, can_ask
    ):
        (tmp_path / "a.recipe").touch()
        (tmp_path / "b.recipe").touch()
        monkeypatch.setattr("fiber.cli.run.can_ask", lambda: can_ask)
        monkeypatch.setattr("click.prompt", lambda *_, **__: 2)

        done = fiber("run", "-a", "true")

        if can_ask:
            assert done.stderr.splitlines()[1:] == ["  1  a.recipe", "  2  b.recipe"]
            assert built == ([str(tmp_path), str(tmp_path / "b.recipe")], ["b.recipe:1"])
        else:
            assert f"{tmp_path} describes several images: a.recipe, b.recipe" in done.stderr
            assert (done.exit_code, list(rundir.runs())) == (1, [])


@pytest.mark.usefixtures("fiber")
def test_nothing_is_left_of_a_detached_run_that_failed(platform):
    with pytest.raises(ZeroDivisionError), Session.load().begin_run(detached=True) as run:
        argv = programs.sleep_forever()
        run.backend.submit(JobSpec(run_id=run.id, name="test", argv=argv, detached=True))
        raise ZeroDivisionError

    assert not (rundir.run_root() / run.id).exists()
    assert platform.jobs() == []


@pytest.mark.usefixtures("fiber")
def test_the_first_error_is_reported_where_the_run_cannot_be_removed(platform):
    session = Session.load()
    with pytest.raises(BackendUnavailableError, match="first"), session.begin_run():
        platform.available = False
        raise BackendUnavailableError("first")
    platform.available = True


@pytest.mark.parametrize(
    "words, code, told",
    [
        ([], 2, "name the program"),
        (["-np", "2"], 2, "name the program"),
        (["--map-by", "node", "./a"], 2, "--map-by is an option of mpirun's: write --"),
        (["-np", "4", "--members", "1", "./a"], 1, "4 ranks do not fit on 1 members of 1 slots"),
        (["-np", "zero", "./a"], 2, "-np"),
        (["--slots", "0", "./a"], 2, "--slots"),
        (["-v", ":x", "./a"], 2, "is no volume"),
        (["--group", "two", "./a"], 2, "'two' is no group of members, which is N or N:slots=K"),
        (["--group", "2:colour=red", "./a"], 2, "is no group of members"),
        (["--group", "2:slots=0", "./a"], 2, "is no group of members"),
        (["--group", "1", "--members", "2", "./a"], 2, "--members and --group both say"),
        (["-np", "4", "--group", "1:slots=3", "./a"], 1, "4 ranks need 4 slots"),
    ],
)
def test_a_line_that_makes_no_sense_is_refused(fiber, platform, words, code, told):
    assert told in fiber.fails("mpirun", *words, code=code)
    assert platform.jobs() == []


def test_what_the_backend_does_not_do_is_refused_early(fiber, capable):
    capable(volumes=False)

    assert "capability 'volumes'" in fiber.fails("mpirun", "-v", "nfs", "./a")


MANIFEST = {
    "apiVersion": "kubeflow.org/v2beta1",
    "kind": "MPIJob",
    "metadata": {"name": "pi"},
    "spec": {
        "runPolicy": {"suspend": True, "managedBy": "somebody"},
        "mpiReplicaSpecs": {
            "Launcher": {
                "template": {"spec": {"containers": [{"command": ["mpirun"], "args": ["./pi"]}]}}
            }
        },
    },
}


@pytest.fixture
def apply(fiber, tmp_path):
    def applied(text, *words):
        (tmp_path / "job").write_text(text)
        return fiber("ring", "apply", *words, str(tmp_path / "job"))

    return applied


def test_fields_are_named_and_a_suspended_job_is_not_started(apply, platform):
    done = apply(json.dumps(MANIFEST))

    assert done.exit_code == 0, done.output
    assert "not supported: spec.runPolicy.managedBy" in done.stderr
    assert "pi is suspended (spec.runPolicy.suspend)" in done.stderr
    assert platform.jobs() == []


@pytest.mark.parametrize(
    "words, text, told",
    [
        (["--strict"], json.dumps(MANIFEST), "--strict refuses these"),
        ([], '{"kind": "Pod", "apiVersion": "v1"}', "the manifest is of v1 Pod"),
        # as YAML, or that its reader is missing
        ([], "kind: Pod\napiVersion: [unfinished", "YAML"),
    ],
    ids=["strict", "another document", "YAML"],
)
def test_a_manifest_that_is_not_wanted_is_refused(apply, words, text, told):
    done = apply(text, *words)

    assert (done.exit_code, done.stdout) == (1, "")
    assert told in done.stderr
