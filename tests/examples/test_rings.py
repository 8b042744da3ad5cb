"""The examples of rings compute what they promise, also where a member is killed on the way."""

import re
import sys
from pathlib import Path

import pytest

import require
from commands import ran

FOLDER = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.examples, pytest.mark.timeout(300)]


def run(name, *arguments, folder):
    done = ran([sys.executable, FOLDER / f"{name}.py", *map(str, arguments)], cwd=folder)
    assert done.returncode == 0, f"{name} {arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("members", [1, 2, 5])
def test_a_member_of_the_allreduce_sends_twice_as_many_messages_as_it_has_fellows(
    members, tmp_path
):
    output = run("ring_allreduce", "--members", members, "--numbers", 103, folder=tmp_path)

    sent = re.findall(r"rank \d+: the sums are right, after (\d+) messages", output)
    assert sent == [str(2 * (members - 1))] * members


def test_training_that_lost_a_member_ends_with_the_same_network(tmp_path):
    require.need_module("torch")

    def networks(*arguments):
        output = run("ring", *arguments, folder=tmp_path)
        found = re.findall(r"rank \d: accuracy [\d.]+, network (\w+)", output)
        return found, re.findall(r"restarts: (\d)", output)

    undisturbed, none = networks()
    disturbed, one = networks("--crash")

    assert (none, one) == (["0"], ["1"])
    assert disturbed == undisturbed
    assert len(set(undisturbed)) == 1


def test_four_members_train_one_network(tmp_path):
    require.need_module("torch")

    output = run("ring", "--members", 4, folder=tmp_path)

    assert len(set(re.findall(r"network (\w+)", output))) == 1
