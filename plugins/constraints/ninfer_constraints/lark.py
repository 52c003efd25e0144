"""llguidance's variant of Lark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import regex_to_lark

from ninfer_grammars.lark import Lark, quoted

JSON_OPTIONS = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,8}"}
"""A model that prefers blanks has to go on after eight of them."""


class GuidanceLark(Lark):
    """JSON schemas and conjunctions are its own; rules may have a parameter."""

    most_in_any_order = 64  # bits of a parameter

    def __init__(self, control_ids: Mapping[str, int]) -> None:
        super().__init__(control_ids)
        self._others: list[dict[str, str]] = []

    def pattern(self, regex: str) -> str:
        return f"/{regex_to_lark(regex, 'dw')}/"

    def json_value(self, schema: Mapping[str, Any]) -> str:
        options = {**schema, "x-guidance": JSON_OPTIONS}
        return "%json " + json.dumps(options, ensure_ascii=False)

    def both(self, body: str, other: str) -> str:
        return f"({body} & {other})"

    def until(self, text: str, closing: str) -> str:
        return self.rule(text, f"[suffix={quoted(closing)}]")

    def text_then(self, text: str, lead: str) -> str:
        return self.rule(self.terminal(f"{text} {lead}"), "[lazy]")

    def any_order(self, parts: Sequence[str], required: int) -> str:
        name = f"o{self.rule(quoted(''))}"
        ends = f'"" %if is_ones([0:{required}])' if required else '""'
        once = (f"{part} {name}::set_bit({i}) %if bit_clear({i})" for i, part in enumerate(parts))
        self.line(f"{name}::_: " + "\n | ".join([ends, *once]))
        return f"{name}::0x0"

    def other(self, source: str) -> str:
        """A reference to a whole grammar of its own."""
        name = f"g{len(self._others)}"
        self._others.append({"name": name, "lark_grammar": source})
        return f"@{name}"

    def whole(self, start: str) -> str:
        """All grammars; the first begins with a rule's body."""
        own = {"name": "own", "lark_grammar": self.source(start)}
        return json.dumps({"grammars": [own, *self._others]})
