"""What an agent that comes after another one makes of the runs that it left."""

import json

import pytest

from fiber_ssh.remote.kernel import clock
from fiber_ssh.remote.runs import Run, load_runs


@pytest.fixture
def left(tmp_path):
    """A run with an ended job, and what its owner said."""

    def leave(said):
        folder = tmp_path / "runs" / "0badcafe" / "job"
        folder.mkdir(parents=True)
        record = {"id": "job", "state": "failed", "detached": False}
        (folder / "job.json").write_text(json.dumps(record))
        if said is not None:
            (folder.parent / "lease").write_text(said)
        return str(tmp_path)

    return leave


def test_its_owner_has_as_long_as_it_said_to_be_heard_of_again(left):
    root = left("2.5")
    before = clock()
    (run,) = load_runs(root)
    assert run.lease == 2.5
    assert before + 2.5 <= run.expires <= clock() + 2.5
    assert list(run.jobs) == ["job"]


@pytest.mark.parametrize("said", [None, "", "nonsense"])
def test_without_a_word_of_its_owner_it_has_the_usual_lease(left, said):
    (run,) = load_runs(left(said))
    assert run.lease == 30.0


def test_what_an_owner_says_is_there_for_the_agent_that_comes_next(left):
    root = left(None)
    Run(root, "0badcafe").attached(7.0)
    (run,) = load_runs(root)
    assert run.lease == 7.0
