"""Globals that the by-value functions of one module share in each process, and whose value counts.

A process keeps what its own code made of a global: an initializer's, a counter's, a lock's. In a
notebook or at a prompt, where users define things again all the time, a value that was changed
where the functions come from replaces it. So what goes along with such functions is numbered: the
same number where the sender's value is surely the one it sent before.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import pickle
import secrets
import sys
import threading
import types
import weakref
from collections.abc import Mapping
from typing import Any, TypeAlias

#: who sends, the module, and a number for each global; None where the module has a home of its own
News: TypeAlias = "tuple[tuple[str, int], str, dict[str, int]] | None"

_LOCKS = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock}

_token = secrets.token_hex(8)
_numbers = itertools.count(1)
_sent: dict[tuple[str, str], tuple[object, int]] = {}
_received: dict[tuple[tuple[str, int], str, str], int] = {}
_homeless: dict[str, dict[str, Any]] = {}


def namespace(module: str) -> dict[str, Any]:
    """The globals that by-value functions of one module share in this process."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        return loaded.__dict__
    found = _homeless.get(module)
    if found is None:
        if module not in ("__main__", "__mp_main__"):
            try:
                return __import__(module, fromlist=["_"]).__dict__
            except ImportError:
                # nobody has it here: its functions bring what they need
                pass
        found = _homeless.setdefault(module, {"__name__": module, "__builtins__": __builtins__})
    return found


def outgoing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Globals as they travel: a lock cannot, and each process has one of its own in its place."""
    return {
        name: _Fresh(_LOCKS[type(value)]) if type(value) in _LOCKS else value
        for name, value in values.items()
    }


def news(module: str, values: Mapping[str, Any]) -> News:
    """What receivers need to know of the globals of a module that they cannot load."""
    numbers = {}
    for name, value in values.items():
        mark = _mark(value)
        before = _sent.get((module, name))
        if mark is None or before is None or before[0] != mark:
            before = _sent[module, name] = (mark, next(_numbers))
        numbers[name] = before[1]
    return _me(), module, numbers


def merge(shared: dict[str, Any], values: Mapping[str, Any], told: News) -> None:
    """Take in the globals that came with a function."""
    for name, value in values.items():
        # what is there already has moved on since it was sent
        if name not in shared or (told is not None and _is_newer(name, told)):
            shared[name] = value
    if told is not None:
        sender, module, numbers = told
        for name, number in numbers.items():
            key = sender, module, name
            _received[key] = max(number, _received.get(key, 0))


def _is_newer(name: str, told: tuple[tuple[str, int], str, dict[str, int]]) -> bool:
    sender, module, numbers = told
    known = _received.get((sender, module, name))
    return known is not None and numbers.get(name, 0) > known and sender != _me()


def _me() -> tuple[str, int]:
    # a forked process is another sender
    return _token, os.getpid()


def _mark(value: Any) -> object:
    """Something equal for the same value; None where that cannot be told."""
    if isinstance(value, (types.FunctionType, type, *_LOCKS)):
        return weakref.ref(value)
    stream = io.BytesIO()
    try:
        _PlainPickler(stream, 5).dump(value)
    except Exception:
        return None
    return hashlib.blake2b(stream.getvalue(), digest_size=16).digest()


class _PlainPickler(pickle.Pickler):
    """Pickles numbers, text and containers of them; runs nobody's code."""

    def reducer_override(self, obj: Any) -> Any:
        msg = f"{type(obj).__name__} is not plain"
        raise pickle.PicklingError(msg)


class _Fresh:
    """Pickles as a call."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __reduce__(self) -> Any:
        return self._make, ()
