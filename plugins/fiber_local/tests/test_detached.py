"""Run directories with detached jobs are kept."""

import json
import secrets

from fiber._agent import rundir
from fiber_local.supervisors import mark_detached


def test_a_directory_is_marked_and_its_description_stays():
    folder = rundir.create(secrets.token_hex(4), "local")
    before = rundir.describe(folder)

    mark_detached(folder)
    mark_detached(folder)

    assert rundir.describe(folder) == {**before, "detached": True}
    assert sorted(path.name for path in folder.iterdir()) == ["owner", "run.json"]
    rundir.remove(folder)


def test_a_directory_without_description_is_left_alone(tmp_path):
    mark_detached(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_one_that_is_detached_already_is_not_written(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"detached": True}))
    before = (tmp_path / "run.json").stat().st_mtime_ns

    mark_detached(tmp_path)

    assert (tmp_path / "run.json").stat().st_mtime_ns == before
