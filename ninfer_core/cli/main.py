"""The ``ninfer`` command: finds the subcommand, runs it, turns errors into exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence

from ninfer_core.api import CommandSpec, NInferError
from ninfer_core.cli import options
from ninfer_core.cli.console import INTERRUPTED, open_missing_streams, set_up_streams
from ninfer_core.cli.plugins import find_plugins

GENERATE = CommandSpec(
    "generate", "Answer one prompt: the answer on stdout, everything else on stderr.",
    "ninfer_core.cli.generate:run", "ninfer_core.cli.options:generate",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ninfer`` and return its exit code: 0, 1 for an error, 130 after Ctrl-C."""
    open_missing_streams()
    arguments = sys.argv[1:] if argv is None else list(argv)
    log_level = "info"
    try:
        general = _general_options(arguments)
        log_level = general.log_level
        set_up_streams(log_level)
        command, parsed = _parse(arguments, general)
        code: int = command.run.load()(parsed)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return _failed(error, log_level)


def _general_options(arguments: list[str]) -> Namespace:
    """What says which plugins there are, and so which commands."""
    parser = options.Parser("ninfer", "", add_help=False)
    options.plugins(parser)
    parser.add_argument("--profile", default=None)
    return parser.parse_known_args(arguments)[0]


def _parse(arguments: list[str], general: Namespace) -> tuple[CommandSpec, Namespace]:
    """The subcommand, if the first word is one, and its options."""
    if arguments and not arguments[0].startswith("-"):
        name, *rest = arguments
        registered = find_plugins(general, general.profile).registry.commands.get(name)
        if registered:
            return registered.spec, parser_of(registered.spec, f"ninfer {name}").parse_args(rest)
    wants_help = not {"-h", "--help"}.isdisjoint(arguments)
    epilog = _other_commands(general) if wants_help else ""
    return GENERATE, parser_of(GENERATE, "ninfer", epilog).parse_args(arguments)


def parser_of(command: CommandSpec, prog: str, epilog: str = "") -> options.Parser:
    """A command's parser, with the options that all commands take."""
    parser = options.Parser(prog, command.summary, epilog)
    if command.options:
        command.options.load()(parser)
    options.plugins(parser)
    return parser


def _other_commands(general: Namespace) -> str:
    commands = find_plugins(general, general.profile).registry.commands.values()
    lines = sorted(f"  ninfer {each.spec.name:12} {each.spec.summary}" for each in commands)
    return "\n".join(["other commands (each has --help):", *lines])


def _failed(error: Exception, log_level: str) -> int:
    if log_level == "debug":
        traceback.print_exc()
    if isinstance(error, OSError):
        fix = "check the path, its permissions and the space left"
        error = NInferError("the system refuses to read or write", why=str(error), fix=fix)
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
