"""The calls that hypothesis puts in any order; see :mod:`fiber.testing.kit.machine`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

if TYPE_CHECKING:
    from fiber.testing.kit.machine import Known, Story

__all__ = ["Calls"]

_INDEX = st.integers(min_value=0, max_value=1000)
_MOST = 6


class Calls(RuleBasedStateMachine):
    """Rules; what each must bring about is the story's to judge.

    Args:
        story: what was done so far.
    """

    def __init__(self, story: Story) -> None:
        super().__init__()
        self.story = story

    def _some(self, index: int) -> Known:
        return self.story.jobs[index % len(self.story.jobs)]

    @precondition(lambda self: len(self.story.jobs) < _MOST)
    @rule(code=st.sampled_from([None, None, 0, 3, 255]))
    def submit(self, code: int | None) -> None:
        """Submit a job."""
        self.story.submit(code)

    @precondition(lambda self: self.story.jobs)
    @rule(index=_INDEX, grace=st.sampled_from([0.0, 0.1, 60.0]))
    def terminate(self, index: int, grace: float) -> None:
        """Terminate one."""
        self.story.terminate(self._some(index), grace)

    @precondition(lambda self: self.story.jobs)
    @rule(index=_INDEX)
    def kill(self, index: int) -> None:
        """Kill one."""
        self.story.kill(self._some(index))

    @precondition(lambda self: self.story.jobs)
    @rule(index=_INDEX)
    def wait(self, index: int) -> None:
        """Wait for the end of one."""
        self.story.wait(self._some(index))

    @precondition(lambda self: self.story.jobs)
    @rule(indexes=st.lists(_INDEX, max_size=4))
    def ask(self, indexes: list[int]) -> None:
        """Ask how some stand."""
        self.story.ask([self._some(index) for index in indexes])

    @precondition(lambda self: self.story.jobs)
    @rule(index=_INDEX)
    def read(self, index: int) -> None:
        """Read the lines of one."""
        self.story.read(self._some(index))

    @rule()
    def count(self) -> None:
        """List them."""
        self.story.count()

    @precondition(lambda self: self.story.jobs)
    @rule()
    def clean_up(self) -> None:
        """End the run's jobs; the next ones belong to the same run."""
        self.story.clean_up()

    def teardown(self) -> None:
        """The next sequence begins with none."""
        self.story.clean_up()
