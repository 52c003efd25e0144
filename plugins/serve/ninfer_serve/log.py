"""Lines of the log on stderr; none has a text of a request, or a secret."""

from __future__ import annotations

import logging

from ninfer_core.cli.console import LOG_LEVELS


def set_up_log(log_level: str) -> None:
    """Send records of this program from a level on to stderr, and warnings of its libraries."""
    level = LOG_LEVELS[log_level]
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(
        "%(asctime)s.%(msecs)03d  %(levelname)-8s  %(message)s", "%Y-%m-%d %H:%M:%S"
    ))
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger().setLevel(max(level, logging.WARNING))
    for name in ("ninfer_core", "ninfer_serve"):
        logging.getLogger(name).setLevel(level)
