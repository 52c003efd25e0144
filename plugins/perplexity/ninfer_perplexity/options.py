"""The options of the command. Importing this imports no torch."""

from __future__ import annotations

from pathlib import Path

from ninfer_core.cli import options
from ninfer_core.cli.options import Parser, ranged


def declare(parser: Parser) -> None:
    """All options of ``ninfer perplexity``."""
    options.model(parser)
    _text(parser)
    _windows(parser)
    _results(parser)
    options.launch(parser)


def _text(parser: Parser) -> None:
    group = parser.add_argument_group("text")
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", type=Path, metavar="FILE", help="one text, UTF-8")
    source.add_argument("--corpus", type=Path, metavar="MANIFEST",
                        help="JSON that names texts, each of a domain")
    group.add_argument("--quick", action="store_true", default=False,
                       help="the first text of each domain alone")


def _windows(parser: Parser) -> None:
    add = parser.add_argument_group("windows").add_argument
    add("--context", type=ranged(int, 2), default=4096, metavar="N",
        help="tokens of a window (default: 4096)")
    add("--stride", type=ranged(int, 1), default=2048, metavar="N",
        help="tokens from window to window, fewer than --context (default: 2048)")


def _results(parser: Parser) -> None:
    add = parser.add_argument_group("results").add_argument
    add("--output", type=Path, default=None, metavar="DIR",
        help="write report.json there; nothing is replaced")
    add("--save-logits", action="store_true", default=False,
        help="keep all log probabilities beside the report; needs --output")
    add("--reference", type=Path, default=None, metavar="REPORT",
        help="compare with the log probabilities of another run, a report or its directory")
