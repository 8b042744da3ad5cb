"""Fiber's own log: where the user asked for it, and nowhere else."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fiber._config.settings import Config

log = logging.getLogger("fiber")


def configure_logging(config: Config) -> None:
    """Follow ``debug``, ``log_level`` and ``log_file``; without them the program's set-up counts."""
    level = logging.DEBUG if config.debug else config.log_level.upper()
    if config.debug or config.is_set("log_level"):
        log.setLevel(level)
    if config.log_file is not None and not any(
        isinstance(handler, logging.FileHandler) for handler in log.handlers
    ):
        handler = logging.FileHandler(config.log_file, delay=True)
        handler.setFormatter(
            logging.Formatter("%(asctime)s %(processName)s %(levelname)s %(message)s")
        )
        log.addHandler(handler)
    elif config.debug and not log.handlers:
        handler_ = logging.StreamHandler(sys.stderr)
        handler_.setFormatter(logging.Formatter("%(processName)s %(levelname)s %(message)s"))
        log.addHandler(handler_)
