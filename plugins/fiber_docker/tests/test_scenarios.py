"""Programs that users write run on containers as they are, with nothing but settings changed."""

import pytest

from scenarios import check_pi, check_policy

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("check", [check_pi, check_policy])
def test_an_example_runs_and_leaves_no_container(engine, tmp_path, check):
    check(tmp_path, engine.environ())

    assert engine.containers() == []
