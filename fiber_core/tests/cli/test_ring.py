"""Lines of mpirun and manifests that make no sense are errors before anything is started."""

import json

import pytest


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


def write(folder, text):
    path = folder / "job"
    path.write_text(text)
    return str(path)


def test_fields_are_named_and_a_suspended_job_is_not_started(fiber, tmp_path, platform):
    done = fiber("ring", "apply", write(tmp_path, json.dumps(MANIFEST)))

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
def test_a_manifest_that_is_not_wanted_is_refused(fiber, tmp_path, words, text, told):
    assert told in fiber.fails("ring", "apply", *words, write(tmp_path, text))
