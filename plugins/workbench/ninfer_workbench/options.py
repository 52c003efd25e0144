"""The options of the commands. Importing this imports no torch."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

KINDS = ("model-pack", "hardware-profile", "plugin")


def skeleton(parser: ArgumentParser) -> None:
    """What `ninfer new` writes."""
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("name", metavar="NAME", help="lower-case letters, digits and _")
    parser.add_argument("--dir", type=Path, default=Path(), help="where to make the folder NAME")
