"""``Pipe``, ``Listener``, ``Client`` and ``wait``: as in ``multiprocessing.connection``.

``answer_challenge`` and ``deliver_challenge`` are the standard library's own, which work with any
connection. Nothing here needs them: who connects has proved itself before.
"""

from __future__ import annotations

from multiprocessing import AuthenticationError, BufferTooShort
from multiprocessing.connection import answer_challenge, deliver_challenge

from fiber.listening import Client, Listener
from fiber.pipes import Connection, Pipe
from fiber.waiting import wait

__all__ = [
    "AuthenticationError",
    "BufferTooShort",
    "Client",
    "Connection",
    "Listener",
    "Pipe",
    "answer_challenge",
    "deliver_challenge",
    "wait",
]
