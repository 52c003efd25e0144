"""The table of subcommands. The code of a command is imported when it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attrs import frozen

from ninfer_core.api import LazyRef
from ninfer_core.cli import options
from ninfer_core.cli.options import Parser, ranged


@frozen
class Command:
    """A subcommand; ``run`` is ``(argparse.Namespace) -> exit code``."""

    summary: str
    run: LazyRef
    arguments: tuple[Callable[[Parser], None], ...]

    def parser(self, prog: str, epilog: str = "") -> Parser:
        """The parser of this command's arguments."""
        parser = Parser(prog, self.summary, epilog)
        for declare in (*self.arguments, options.plugins):
            declare(parser)
        return parser


def _command(summary: str, run: str, *arguments: Callable[[Parser], None]) -> Command:
    return Command(summary, LazyRef(f"ninfer_core.cli.{run}"), arguments)


def _new(parser: Parser) -> None:
    parser.add_argument("kind", choices=("model-pack", "hardware-profile", "plugin"))
    parser.add_argument("name", metavar="NAME", help="lower-case letters, digits and _")
    parser.add_argument("--dir", type=Path, default=Path(), help="where to make the folder NAME")


def _conformance(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="of a model pack, profile or plugin")
    parser.add_argument("--level", type=ranged(int, 0, 7), default=4, help="highest level to run")


GENERATE = _command(
    "Answer one prompt: the answer on stdout, everything else on stderr.", "generate:run",
    options.model, options.request, options.sampling, options.launch,
)
COMMANDS = {
    "plugins": _command("List every distribution with its state and reason.", "listing:plugins"),
    "kernels": _command("List all kernels, or with MODEL the ones chosen and rejected for it.",
                        "doctor:kernels", options.model, options.launch),
    "doctor": _command("Check claim, weights and kernels of a model without loading it.",
                       "doctor:run", options.model, options.launch),
    "plan": _command("Memory ledger and predicted speed, with the arithmetic.", "plan:run",
                     options.model, options.launch),
    "new": _command("Write a skeleton distribution that passes L0 and L1.", "new:run", _new),
    "conformance": _command("Run the conformance kit and print its table.", "listing:conformance",
                            _conformance),
    "fetch": _command("Install and check the weights of an embedded model.", "fetch:run",
                      options.model),
}
