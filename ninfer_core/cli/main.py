"""The ``ninfer`` command: finds the subcommand and runs it."""

from __future__ import annotations

import gc
import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from ninfer_core.api import CommandSpec, ConfigError
from ninfer_core.cli import options
from ninfer_core.cli.console import set_up_streams
from ninfer_core.cli.exits import exit_code
from ninfer_core.cli.plugins import find_plugins
from ninfer_core.plugin_host import Registry

GENERATE = CommandSpec(
    "generate", "Answer one prompt: the answer on stdout, everything else on stderr.",
    "ninfer_core.cli.generate:run", "ninfer_core.cli.options:generate",
)


LASTING_OBJECTS = 100_000
"""Allocations between garbage collections: a million objects, which last, describe a model of many
experts, and to look through them again and again takes longer than to make them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ninfer`` and return its exit code, see `exit_code`."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    return exit_code(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    gc.set_threshold(LASTING_OBJECTS)
    general = _general_options(arguments)
    set_up_streams(general.log_level)
    command, parsed = _parse(arguments, general)
    code: int = command.run.load()(parsed)
    return code


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
        registry = find_plugins(general, general.profile).registry
        if registered := registry.commands.get(name):
            return registered.spec, parser_of(registered.spec, f"ninfer {name}").parse_args(rest)
        _check_model(name, registry)
    wants_help = not {"-h", "--help"}.isdisjoint(arguments)
    epilog = _other_commands(general) if wants_help else ""
    return GENERATE, parser_of(GENERATE, "ninfer", epilog).parse_args(arguments)


def _check_model(name: str, registry: Registry) -> None:
    """Refuse a word that is neither a command nor a model, such as a misspelt command."""
    packs = [pack.spec for pack in registry.packs.values()]
    models = {model.name for pack in packs for model in pack.embedded}
    models |= {card.name for pack in packs for card in pack.cards}
    is_path = os.path.sep in name or os.path.splitext(name)[1] or os.path.exists(name)
    if not (name in models or is_path):
        raise ConfigError(
            f"no command or model {name!r}",
            why=f"commands: {', '.join(sorted(registry.commands))}; "
            f"models: {', '.join(sorted(models)) or 'none'}, or a path",
        )


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


if __name__ == "__main__":
    sys.exit(main())
