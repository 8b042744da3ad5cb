"""A manifest is read, unsupported fields are named, and nothing else is started."""

import json

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


def test_strict_refuses_what_is_not_supported(fiber, tmp_path):
    path = write(tmp_path, json.dumps(MANIFEST))

    assert "--strict refuses these" in fiber.fails("ring", "apply", "--strict", path)


def test_another_document_is_an_error(fiber, tmp_path):
    path = write(tmp_path, '{"kind": "Pod", "apiVersion": "v1"}')

    assert "the manifest is of v1 Pod" in fiber.fails("ring", "apply", path)


def test_yaml_is_read_where_its_reader_is_there(fiber, tmp_path):
    path = write(tmp_path, "kind: Pod\napiVersion: [unfinished")

    # or that it is missing
    assert "YAML" in fiber.fails("ring", "apply", path)
