"""Stations as their controller starts them; what they do is shown end to end."""

import pytest

from fiber._ring.mpi import crew
from fiber._ring.mpi.timing import MpiTiming
from fiber._runtime import runtime
from fiber.exceptions import SubmitError


@pytest.mark.usefixtures("shared_runtime")
@pytest.mark.parametrize("takes_many, sizes", [(True, [[2, 2]]), (False, [[2]])])
def test_all_are_one_gang_which_is_one_call_where_the_platform_takes_several(
    monkeypatch, takes_many, sizes
):
    asked = []

    def launch_many(jobs):
        asked.append([options["gang"].size for _, options in jobs])
        return [SubmitError("no room") for _ in jobs]

    launcher = runtime.current().launcher
    monkeypatch.setattr(launcher, "launch_many", launch_many)
    monkeypatch.setattr(type(launcher), "takes_many", takes_many)
    stations = crew.Crew("a token", 60.0, MpiTiming())
    with pytest.raises(SubmitError, match="no room"):
        stations.start({("member-0",): crew.Need(), ("member-1",): crew.Need()})
    stations.end()

    assert asked == sizes
