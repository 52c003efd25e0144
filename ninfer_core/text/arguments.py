"""Arguments of a tool call, which models write as plain text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ninfer_core.text.schema_types import TYPES, admitted_types, declared_properties
from ninfer_core.text.strict_json import parse_json
from ninfer_core.text.unicode import unicode_scalars


def arguments_json(values: Mapping[str, str], schema: Any) -> str:
    """The JSON object of a call's arguments, with literal UTF-8.

    :param values: texts as the model wrote them. :param schema: JSON schema of the object.
    """
    declared = declared_properties(schema)
    typed = {name: typed_value(text, declared.get(name), schema) for name, text in values.items()}
    return unicode_scalars(json.dumps(typed, ensure_ascii=False))


def typed_value(text: str, schema: Any, root: Any) -> Any:
    """``text`` as a value of a type that its schema admits, the first of `TYPES` that fits; as it
    is if none does or the schema does not say. The host of the tool validates; it cannot if the
    call is lost.

    Where a string is admitted too, a number is one only as JSON writes it: ``1.10`` stays.

    :param root: the schema that references point into.
    """
    admitted = admitted_types(schema, root) or frozenset()
    for name in TYPES:
        if name not in admitted or name == "string":
            continue
        try:
            value = _READERS[name](text.strip())
        except ValueError:
            continue
        if "string" not in admitted or type(value) not in (int, float) or str(value) == text:
            return value
    return text


def _null(text: str) -> None:
    if text != "null":
        raise ValueError(text)


def _boolean(text: str) -> bool:
    """In any case: models also write Python's."""
    if (word := text.lower()) not in ("true", "false"):
        raise ValueError(text)
    return word == "true"


def _integer(text: str) -> int:
    value = parse_json(text)
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is not int:
        raise ValueError(text)
    return value


def _json_of(*kinds: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = parse_json(text)
        if type(value) not in kinds:
            raise ValueError(text)
        return value

    return read


_READERS: Mapping[str, Callable[[str], Any]] = {
    "null": _null, "boolean": _boolean, "number": _json_of(int, float), "integer": _integer,
    "array": _json_of(list), "object": _json_of(dict),
}
