"""What the content of an answer must be, from the command line."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from ninfer_core.api import Grammar, RequestError


def read_grammar(arguments: Namespace) -> Grammar | None:
    """The grammar that was asked for, if one was; raises `RequestError` naming an unreadable
    file."""
    if "json_object" in arguments:
        return Grammar("json")
    if "json_schema_file" in arguments:
        return Grammar("json_schema", _read(arguments.json_schema_file))
    if "regex" in arguments:
        return Grammar("regex", arguments.regex)
    if "choice" in arguments:
        return Grammar("choice", json.dumps(arguments.choice))
    if "grammar_file" in arguments:
        return Grammar("grammar", _read(arguments.grammar_file))
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        raise RequestError("cannot read a grammar", where=str(path), why=str(error)) from error
