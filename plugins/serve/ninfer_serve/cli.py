"""The command ``ninfer-serve``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ninfer_core.cli.exits import exit_code
from ninfer_serve.config import load
from ninfer_serve.options import given, parser, to_toml


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ninfer-serve`` and return its exit code, see `exit_code`; 0 after a signal, too."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    return exit_code(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    parsed = parser().parse_args(arguments)
    config = load(parsed.config, given(parsed))
    if parsed.print_config:
        print(to_toml(config))
        return 0
    from ninfer_serve.server import serve  # help and checks do not wait for it

    return serve(config)


if __name__ == "__main__":
    sys.exit(main())
