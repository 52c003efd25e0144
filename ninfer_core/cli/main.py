"""The ``ninfer`` command: finds the subcommand, runs it, turns errors into exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence

from ninfer_core.api import NInferError
from ninfer_core.cli.commands import COMMANDS, GENERATE, Command
from ninfer_core.cli.console import INTERRUPTED, set_up_streams


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ninfer`` and return its exit code: 0, 1 for an error, 130 after Ctrl-C."""
    log_level = "info"
    try:
        command, parsed = _parse(sys.argv[1:] if argv is None else list(argv))
        log_level = parsed.log_level
        set_up_streams(log_level)
        code = command.load()(parsed)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return _failed(error, log_level)


def _parse(arguments: list[str]) -> tuple[Command, Namespace]:
    if arguments and arguments[0] in COMMANDS:
        command = COMMANDS[arguments[0]]
        return command, command.parser(f"ninfer {arguments[0]}").parse_args(arguments[1:])
    return GENERATE, GENERATE.parser("ninfer", _other_commands()).parse_args(arguments)


def _other_commands() -> str:
    lines = [f"  ninfer {name:12} {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(["other commands (each has --help):", *lines])


def _failed(error: Exception, log_level: str) -> int:
    if log_level == "debug":
        traceback.print_exc()
    text = str(error)
    if not isinstance(error, NInferError):
        text = f"internal: {error!r}\n  to fix: report it with the output of --log-level debug"
    print(f"error: {text}", file=sys.stderr)
    return 1


def _reader_gone() -> int:
    """The reader of stdout has left: keep the interpreter from failing at its last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


if __name__ == "__main__":
    sys.exit(main())
