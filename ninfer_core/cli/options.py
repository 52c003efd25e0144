"""The options of the commands. One that is not given is absent, so that the model, the TOML file
and the defaults of `LaunchConfig` show through. Importing this imports no torch."""

from __future__ import annotations

import math
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, get_args

from ninfer_core.api import ConfigError, ReasoningEffort
from ninfer_core.cli.console import LOG_LEVELS


class Parser(ArgumentParser):
    """An argument parser whose errors are `ConfigError`."""

    def __init__(
        self, prog: str, description: str, epilog: str = "", *, add_help: bool = True
    ) -> None:
        super().__init__(prog, description=description, epilog=epilog, allow_abbrev=False,
                         add_help=add_help,
                         argument_default=SUPPRESS, formatter_class=RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, fix=f"see '{self.prog} --help'")


def ranged(kind: type, low: float, high: float = math.inf) -> Callable[[str], Any]:
    """An option type: an int or float of ``low..high``."""
    wanted = "an integer" if kind is int else "a number"
    wanted += f" of {low:g} or more" if high == math.inf else f" within {low:g}..{high:g}"

    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high or value == math.inf:
            raise ArgumentTypeError(f"must be {wanted}, not {text!r}")
        return value

    return convert


def pair(text: str) -> tuple[str, str]:
    """An option type: ``KEY=VALUE``."""
    key, _, value = text.partition("=")
    if not (key and value):
        raise ArgumentTypeError(f"must be KEY=VALUE, not {text!r}")
    return key, value


def capacity(text: str) -> int | str:
    """An option type: bytes, or ``auto``."""
    if text != "auto" and not text.isdecimal():
        raise ArgumentTypeError(f"must be a number of bytes or auto, not {text!r}")
    return text if text == "auto" else int(text)


def model(parser: Parser) -> None:
    """The model argument."""
    parser.add_argument("model", nargs="?", default=None, metavar="MODEL",
                        help=".ninfer file or name of an embedded model (default: the default one)")


def plugins(parser: Parser) -> None:
    """Which plugins take part, and how much is said."""
    add = parser.add_argument_group("plugins and diagnosis").add_argument
    add("-p", "--plugin", action="append", default=[], metavar="MODULE",
        help="load a plugin that is not installed; repeatable")
    add("--no-plugin", action="append", default=[], metavar="NAME",
        help="leave a plugin out; repeatable")
    add("--log-level", choices=LOG_LEVELS, default="info",
        help="what stderr gets (default: info); debug adds tracebacks")


def launch(parser: Parser) -> None:
    """How the model is set up; ranges are checked by `LaunchConfig`."""
    add = parser.add_argument_group("launch").add_argument
    add("--config", type=Path, default=None, metavar="TOML",
        help="launch options; the command line wins")
    for name, kind, metavar, text in (
        ("profile", str, "NAME", "hardware profile (default: the best that fits)"),
        ("pack", str, "NAME", "model pack (default: the highest claim)"),
        ("max-context", int, "N", "most tokens of a sequence (default: 2048)"),
        ("context-capacity", capacity, "BYTES",
         "byte pool of all sequences; auto takes what the machine has left"),
        ("host-capacity", int, "BYTES", "host memory for states that leave the pool"),
        ("disk-cache", str, "FOLDER", "keep states there for later runs"),
        ("state-tier", str, "NAME", "who keeps them (default: the only one installed)"),
        ("kv-dtype", str, "NAME", "storage of the KV cache (default: the profile's)"),
        ("prefill-chunk", int, "N", "prompt tokens a step, a multiple of 64 (default: 512)"),
        ("spec", str, "NAME", "speculator, such as mtp or ngram"),
        ("draft-tokens", int, "N", "most drafts of one round (default: 3); needs --spec"),
        ("constraints", str, "NAME", "engine of grammars (default: the only one installed)"),
        ("threads", int, "N", "CPU threads (default: the profile's)"),
    ):
        add(f"--{name}", type=kind, metavar=metavar, help=text)
    add("--lm-head-draft", action="store_true", default=SUPPRESS,
        help="draft over the artifact's shortlist of tokens; needs --spec")
    add("--tables-on-device", action="store_true", default=SUPPRESS,
        help="hold n-gram tables in the device's memory instead of the host's")
    add("--eager", action="store_true", default=SUPPRESS,
        help="launch a GPU's steps kernel by kernel instead of as captured graphs")
    add("--kernel", dest="kernels", action="append", default=[], type=pair, metavar="OP=NAME",
        help="use this kernel for an op; repeatable")


def request(parser: Parser) -> None:
    """What is asked, and when the answer ends."""
    group = parser.add_argument_group("request")
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="one user message")
    source.add_argument("--messages", type=Path, metavar="FILE",
                        help="JSON: an array or {messages, tools}; - reads stdin")
    add = group.add_argument
    add("--max-tokens", type=ranged(int, 1), default=128, metavar="N",
        help="most tokens of the answer (default: 128)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before it; repeatable")
    add("--stop-token-id", type=ranged(int, 0), action="append", default=[], metavar="ID",
        help="end at this token; repeatable")
    _grammar(group)
    add("--raw-output", action="store_true", default=False, help="print text as the model wrote it")
    add("--print-token-ids", action="store_true", default=False, help="list the ids on stderr")


def _grammar(group: Any) -> None:
    """What the content must be."""
    add = group.add_mutually_exclusive_group().add_argument
    add("--json-object", action="store_true", default=SUPPRESS, help="answer with a JSON object")
    add("--json-schema-file", type=Path, metavar="FILE", help="answer with JSON of this schema")
    add("--regex", metavar="TEXT", help="answer with text of this regular expression")
    add("--choice", action="append", metavar="TEXT", help="answer with this text; repeatable")
    add("--grammar-file", type=Path, metavar="FILE",
        help="answer with text of this grammar, in the constraint engine's notation")


def reasoning(parser: Parser) -> None:
    """Whether, how much and how long the model reasons."""
    group = parser.add_argument_group("reasoning (default: the model's)")
    group.add_argument("--reasoning-effort", choices=get_args(ReasoningEffort), default=None,
                       help="how much; none and minimal turn it off")
    add = group.add_mutually_exclusive_group().add_argument
    add("--no-thinking", dest="thinking", action="store_false", default=None,
        help="answer without reasoning")
    add("--thinking-budget", type=ranged(int, 1), default=None, metavar="N",
        help="most tokens of reasoning; a block that takes more is closed")


def sampling(parser: Parser) -> None:
    """How tokens are drawn."""
    add = parser.add_argument_group("sampling (default: the model's)").add_argument
    add("--greedy", action="store_true", default=False, help="force --temperature 0")
    for name, kind, low, high, text in (
        ("temperature", float, 0, 2, "0..2; 0 is greedy"),
        ("top-k", int, 0, math.inf, "keep the N likeliest; 0 keeps all"),
        ("top-p", float, 0, 1, "nucleus mass; 0 keeps the likeliest alone"),
        ("min-p", float, 0, 1, "least share of the likeliest's probability"),
        ("presence-penalty", float, -2, 2, "-2..2, per token seen"),
        ("frequency-penalty", float, -2, 2, "-2..2, per occurrence"),
        ("repetition-penalty", float, 1e-3, 1e3, "above 0; over prompt and answer"),
        ("seed", int, 0, 2**64 - 1, "key of the draws (default: 0)"),
    ):
        add(f"--{name}", type=ranged(kind, low, high), metavar="N", help=text)


def generate(parser: Parser) -> None:
    """All options of ``ninfer`` without a subcommand."""
    for declare in (model, request, reasoning, sampling, launch):
        declare(parser)


def model_and_launch(parser: Parser) -> None:
    """A model and how it is set up, for commands that generate nothing."""
    model(parser)
    launch(parser)
