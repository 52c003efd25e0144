"""What a completion's text must be."""

from __future__ import annotations

import json

from ninfer_core.api import Grammar, RequestError
from ninfer_serve.members import Members, refuse

EXTENSIONS = ("json", "regex", "choice", "grammar")


def read_grammar(body: Members) -> Grammar | None:
    """Of ``response_format``, or of ``structured_outputs``, an extension that vLLM's clients know.

    :raises RequestError: for both at once, or a malformed one.
    """
    layout, extension = body.object("response_format"), body.object("structured_outputs")
    told = _layout(layout) if layout else None
    extended = _extension(extension) if extension else None
    if told and extended:
        raise RequestError("contradicting options", where="structured_outputs",
                           why="there is a response_format, too", fix="give one of the two")
    return told or extended


def _layout(layout: Members) -> Grammar | None:
    layout.need_text("type")
    kind = layout.one_of("type", ("text", "json_object", "json_schema"))
    if kind == "json_schema":
        described = layout.object("json_schema") or Members({}, layout.place("json_schema"))
        return _schema(described, "schema")
    if kind == "json_object":  # llama.cpp's clients may give it a schema
        return _schema(layout, "schema") if "schema" in layout else Grammar("json")
    return None


def _extension(extension: Members) -> Grammar | None:
    kinds = [kind for kind in EXTENSIONS if kind in extension]
    if len(kinds) > 1:
        refuse(extension.place(kinds[1]), f"left out beside {kinds[0]}",
               extension.values[kinds[1]])
    match kinds:
        case ["json"]:
            return _schema(extension, "json")
        case ["choice"]:
            return Grammar("choice", json.dumps(_choices(extension), ensure_ascii=False))
        case ["regex"]:
            return Grammar("regex", extension.need_text("regex"))
        case ["grammar"]:
            return Grammar("grammar", extension.need_text("grammar"))
    return None


def _schema(described: Members, name: str) -> Grammar:
    if (schema := described.object(name)) is None:
        refuse(described.place(name), "a JSON schema", None)
    return Grammar("json_schema", json.dumps(schema.values, ensure_ascii=False))


def _choices(extension: Members) -> list[str]:
    choices = extension.array("choice")
    for index, each in enumerate(choices):
        if not isinstance(each, str) or not each:
            refuse(f"{extension.place('choice')}[{index}]", "a string that is not empty", each)
    return choices or refuse(extension.place("choice"), "an array of strings", choices)
