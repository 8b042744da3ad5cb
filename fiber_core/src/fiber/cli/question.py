"""A question on the terminal whose answer comes as an event, while everything else goes on."""

from __future__ import annotations

import os
import selectors
import sys
import threading
from collections.abc import Callable
from types import TracebackType

import click

__all__ = ["Question", "can_ask"]

_LINE = 1024


def can_ask() -> bool:
    """True where a person sits in front of this command."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Question:
    """Asks one thing at a time; used as a context, after which nobody reads the terminal.

    Args:
        told: called with an answer, on a thread of its own: what was typed, in small letters
            without the spaces around it; "" at the end of the input.
    """

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told
        self._ear, self._mouth = os.pipe()
        self._thread: threading.Thread | None = None

    @property
    def is_open(self) -> bool:
        """True while an answer is awaited."""
        return self._thread is not None and self._thread.is_alive()

    def ask(self, text: str) -> None:
        """Ask, and return at once; a question that is open is asked again."""
        click.echo(text, nl=False, err=True)
        if not self.is_open:
            self._thread = threading.Thread(
                target=self._listen, args=(sys.stdin.fileno(),), name="fiber-question", daemon=True
            )
            self._thread.start()

    def __enter__(self) -> Question:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_open:
            # what comes next does not belong behind the question
            click.echo(err=True)
        os.close(self._mouth)
        if self._thread is not None:
            self._thread.join()
        os.close(self._ear)

    def _listen(self, terminal: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._ear, selectors.EVENT_READ)
            selector.register(terminal, selectors.EVENT_READ)
            if any(key.fd == self._ear for key, _ in selector.select()):
                return
        self._told(os.read(terminal, _LINE).decode("utf-8", "replace").strip().lower())
