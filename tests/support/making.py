"""Fixtures that hand a test a maker: whatever it makes is ended with the test."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def making(make: Callable[..., Any], end: Callable[[Any], Any]) -> Iterator[Callable[..., Any]]:
    """Makes what a test asks for; all of it is ended afterwards, the latest first.

    Args:
        make: a class, or a function.
        end: called with each that was made.
    """
    with contextlib.ExitStack() as stack:

        def made(*args: Any, **kwargs: Any) -> Any:
            one = make(*args, **kwargs)
            stack.callback(end, one)
            return one

        yield made
