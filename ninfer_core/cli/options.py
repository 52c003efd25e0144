"""The options of the commands. One that is not given is absent, so that the model, the TOML file
and the defaults of `LaunchConfig` show through. Importing this imports no torch."""

from __future__ import annotations

import math
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ninfer_core.api import ConfigError


class Parser(ArgumentParser):
    """An argument parser whose errors are `ConfigError`."""

    def __init__(self, prog: str, description: str, epilog: str = "") -> None:
        super().__init__(prog, description=description, epilog=epilog, allow_abbrev=False,
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
    add("--log-level", choices=("debug", "info", "warning", "error", "off"), default="info",
        help="what stderr gets (default: info); debug adds tracebacks")


def launch(parser: Parser) -> None:
    """How the model is set up; ranges are checked by `LaunchConfig`."""
    add = parser.add_argument_group("launch").add_argument
    add("--config", type=Path, metavar="TOML", help="launch options; the command line wins")
    add("--profile", metavar="NAME", help="hardware profile (default: the best that fits)")
    add("--pack", metavar="NAME", help="model pack (default: the highest claim)")
    add("--max-context", type=int, metavar="N", help="most tokens of a sequence (default: 2048)")
    add("--context-capacity", type=int, metavar="BYTES", help="byte pool of all sequences")
    add("--kv-dtype", metavar="NAME", help="storage of the KV cache (default: the profile's)")
    add("--prefill-chunk", type=int, metavar="N", help="prompt tokens a step, a multiple of 64")
    add("--kernel", dest="kernels", action="append", type=pair, metavar="OP=NAME",
        help="use this kernel; repeatable")
    add("--threads", type=int, metavar="N", help="CPU threads (default: the profile's)")


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
    add("--raw-output", action="store_true", default=False, help="print text as the model wrote it")
    add("--print-token-ids", action="store_true", default=False, help="list the ids on stderr")


def sampling(parser: Parser) -> None:
    """How tokens are drawn."""
    add = parser.add_argument_group("sampling (default: the model's)").add_argument
    add("--greedy", action="store_true", default=False, help="force --temperature 0")
    add("--temperature", type=ranged(float, 0, 2), metavar="T", help="0..2; 0 is greedy")
    add("--top-p", type=ranged(float, 1e-6, 1), metavar="P", help="nucleus mass, above 0, to 1")
    add("--top-k", type=ranged(int, 0), metavar="K", help="keep the K likeliest; 0 keeps all")
    add("--min-p", type=ranged(float, 0, 1), metavar="P", help="least share of the likeliest's")
    add("--presence-penalty", type=ranged(float, -2, 2), metavar="X", help="-2..2, per token seen")
    add("--frequency-penalty", type=ranged(float, -2, 2), metavar="X", help="-2..2, per occurrence")
    add("--repetition-penalty", type=ranged(float, 1e-3, 1e3), metavar="X",
        help="above 0; over prompt and answer")
    add("--seed", type=ranged(int, 0, 2**64 - 1), metavar="N", help="key of the draws (default: 0)")
