"""The command line of the server, made from its options, and a configuration as a TOML text."""

from __future__ import annotations

import json
from argparse import SUPPRESS, Action, BooleanOptionalAction, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from attrs import Attribute, evolve

from ninfer_core.cli.options import Parser, capacity, pair
from ninfer_core.config.structure import Capacity
from ninfer_serve.config import ServeConfig, sections

DESCRIPTION = "Serve a model over HTTP, in the dialects of OpenAI and Anthropic."
REDACTED = "***"


def parser() -> Parser:
    """A model, ``--config``, ``--print-config`` and a flag for every key."""
    made = Parser("ninfer-serve", DESCRIPTION)
    made.add_argument("model.path", nargs="?", default=SUPPRESS, metavar="MODEL",
                      help="the same as --model")
    made.add_argument("--config", type=Path, default=None, metavar="TOML",
                      help="options; the command line wins")
    made.add_argument("--print-config", action="store_true", default=False,
                      help="print all options as they come out, and end")
    for section, (kind, keys) in sections().items():
        group = made.add_argument_group(f"[{section}]", (kind.__doc__ or "").strip())
        for key, hint in zip(keys, _hints(kind), strict=True):
            default = f" (default: {key.default})" if _says_default(key) else ""
            group.add_argument(
                f"--{flag_of(key)}", dest=f"{section}.{key.name}", default=SUPPRESS,
                help=(key.metadata["text"] + default).replace("%", "%%"), **_parsing(key, hint),
            )
    return made


def given(arguments: Namespace) -> dict[str, dict[str, Any]]:
    """What the command line says, by section and key."""
    found: dict[str, dict[str, Any]] = {name: {} for name in sections()}
    for name, value in vars(arguments).items():
        section, dot, key = name.partition(".")
        if dot:
            found[section][key] = dict(value) if key == "kernels" else value
    return found


def flag_of(key: Attribute[Any]) -> str:
    """Without dashes in front."""
    return key.metadata["flag"] or key.name.replace("_", "-")


def to_toml(config: ServeConfig) -> str:
    """The configuration with all its keys, those without a value as comments; secrets are left out.
    """
    secret = evolve(config.auth, api_keys=(REDACTED,) * len(config.auth.api_keys))
    shown = evolve(config, auth=secret)
    return "\n".join(
        line for section in sections() for line in _section(section, getattr(shown, section))
    )


def _section(name: str, values: Any) -> Iterator[str]:
    yield f"[{name}]"
    for key in sections()[name][1]:
        value = getattr(values, key.name)
        if value is None:
            yield f"# {key.name} =  # {key.metadata['text']}"
        else:
            yield f"{key.name} = {_literal(value)}  # {key.metadata['text']}"
    yield ""


def _literal(value: Any) -> str:
    """A value of TOML, whose strings may be written as JSON writes them."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{json.dumps(key)} = {_literal(each)}" for key, each in value.items())
        return "{" + (f" {inner} " if inner else "") + "}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _hints(kind: type) -> list[Any]:
    return [*get_type_hints(kind).values()]


def _says_default(key: Attribute[Any]) -> bool:
    text = key.metadata["text"]
    plain = isinstance(key.default, int | float | str) and not isinstance(key.default, bool)
    return plain and "default" not in text


def _parsing(key: Attribute[Any], hint: Any) -> dict[str, Any]:
    """How argparse reads a key of this type."""
    metavar = {"metavar": key.metadata["metavar"]} if key.metadata["metavar"] else {}
    if hint == Capacity:
        return {"type": capacity, **metavar}
    if get_origin(hint) is tuple:
        return {"action": _Collect, **metavar}
    if key.name == "kernels":
        return {"action": _Collect, "type": pair, **metavar}
    kinds = {each for each in get_args(hint) or (hint,) if each is not type(None)}
    if bool in kinds:
        return {"action": BooleanOptionalAction}
    [kind] = kinds
    return {"type": kind, "metavar": {int: "N", float: "X", str: "TEXT"}[kind], **metavar}


class _Collect(Action):
    """A repeatable option; what is not given leaves nothing behind."""

    def __call__(
        self, parser: Any, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        setattr(namespace, self.dest, (*getattr(namespace, self.dest, ()), values))
