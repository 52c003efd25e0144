"""The command ``ninfer-perplexity``, which is ``ninfer perplexity`` under a name of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ninfer_core.cli.console import set_up_streams
from ninfer_core.cli.exits import exit_code
from ninfer_core.cli.main import parser_of
from ninfer_perplexity.plugin import COMMAND


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ninfer-perplexity`` and return its exit code, see `exit_code`."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    return exit_code(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    parsed = parser_of(COMMAND, "ninfer-perplexity").parse_args(arguments)
    set_up_streams(parsed.log_level)
    code: int = COMMAND.run.load()(parsed)
    return code
