"""The table of subcommands. The code of a command is imported when it runs."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from importlib import import_module

from attrs import frozen

from ninfer_core.cli import options
from ninfer_core.cli.options import Parser


@frozen
class Command:
    """A subcommand: what it is for, the function of this package that runs it, its options."""

    summary: str
    code: str
    options: tuple[Callable[[Parser], None], ...]

    def load(self) -> Callable[[Namespace], int]:
        """Import the function, which takes parsed arguments and returns an exit code."""
        module, _, name = self.code.partition(":")
        function: Callable[[Namespace], int] = getattr(
            import_module(f"ninfer_core.cli.{module}"), name
        )
        return function

    def parser(self, prog: str, epilog: str = "") -> Parser:
        """The parser of its options."""
        parser = Parser(prog, self.summary, epilog)
        for declare in (*self.options, options.plugins):
            declare(parser)
        return parser


GENERATE = Command(
    "Answer one prompt: the answer on stdout, everything else on stderr.", "generate:run",
    (options.model, options.request, options.sampling, options.launch),
)
MODEL = (options.model, options.launch)
COMMANDS = {
    "plugins": Command("List every plugin with its state and reason.", "plugins:run", ()),
    "kernels": Command("List all kernels, or those a MODEL gets.", "kernels:run", MODEL),
    "doctor": Command("Check a model without loading it.", "doctor:run", MODEL),
    "plan": Command("Memory ledger and predicted speed, with arithmetic.", "plan:run", MODEL),
    "new": Command("Write a skeleton distribution.", "new:run", (options.skeleton,)),
    "conformance": Command("Run the conformance kit.", "conformance:run", (options.subject,)),
    "fetch": Command("Install the weights of an embedded model.", "fetch:run", (options.model,)),
}
