"""The log of bluecomm."""

from __future__ import annotations

import logging


def set_log_level(level: str) -> None:
    """Show messages from a level on, with a handler unless the program has set one.

    Args:
        level: Value of ``BLUECOMM_LOG_LEVEL``.
    """
    names = {"trace": logging.DEBUG, "fatal": logging.CRITICAL}
    log = logging.getLogger("bluecomm")
    log.setLevel(names.get(level, getattr(logging, level.upper(), logging.WARNING)))
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("bluecomm %(levelname)s: %(message)s"))
        log.addHandler(handler)
        log.propagate = False
