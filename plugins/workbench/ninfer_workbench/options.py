"""The options of the commands. Importing this imports no torch."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from ninfer_core.cli.options import Parser, model_and_launch

KINDS = ("model-pack", "hardware-profile", "plugin")


def skeleton(parser: ArgumentParser) -> None:
    """What `ninfer new` writes."""
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("name", metavar="NAME", help="lower-case letters, digits and _")
    parser.add_argument("--dir", type=Path, default=Path(), help="where to make the folder NAME")


def plan(parser: Parser) -> None:
    """A model, how it is set up, and where its weights are thought to be."""
    model_and_launch(parser)
    parser.add_argument("--experts-on-host", action="store_true", default=False,
                        help="predict for routed experts that wait in host memory")
