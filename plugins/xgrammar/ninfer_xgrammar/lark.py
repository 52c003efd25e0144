"""XGrammar's variant of Lark, which has no lexer: a text ends where what follows it can begin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from xgrammar import Grammar

from ninfer_core.api import UnsupportedError
from ninfer_grammars.lark import Lark, quoted
from ninfer_xgrammar.json_rules import JsonRules
from ninfer_xgrammar.regex import whole_match


class XLark(Lark):
    """JSON schemas become rules here: XGrammar's own reader leaves out what it does not know.

    :ivar others: grammars that rules refer to.
    """

    most_in_any_order = 6  # each set of parts is a rule
    no_text = r"\ud800-\udfff"

    def __init__(self, control_ids: Mapping[str, int]) -> None:
        super().__init__(control_ids)
        self.others: dict[str, Grammar] = {}
        self._values: dict[str, str] = {}

    def terminal(self, body: str) -> str:
        """What is a terminal elsewhere is a rule like any other."""
        return self.rule(body)

    def pattern(self, regex: str) -> str:
        return whole_match(regex)

    def json_value(self, schema: Mapping[str, Any]) -> str:
        key = json.dumps(schema)
        if key not in self._values:
            self._values[key] = JsonRules(self, schema).start()
        return self._values[key]

    def both(self, body: str, other: str) -> str:
        raise UnsupportedError("XGrammar cannot hold a text to two rules at once")

    def until(self, text: str, closing: str) -> str:
        return f"{text} {quoted(closing)}"

    def text_then(self, text: str, lead: str) -> str:
        return f"{text} {lead}"

    def any_order(self, parts: Sequence[str], required: int) -> str:
        needed, every = (1 << required) - 1, (1 << len(parts)) - 1
        names = {done: self.reserve() for done in range(every + 1)}
        for done, name in names.items():
            options = [
                f"{part} {names[done | 1 << i]}" for i, part in enumerate(parts)
                if not done >> i & 1
            ]
            if done & needed == needed:
                options.append('""')
            self.define(name, " | ".join(options))
        return names[0]

    def reserve(self) -> str:
        """The name of a rule that is defined later."""
        return self.rule('""')

    def define(self, name: str, body: str) -> None:
        """Give a reserved rule its body."""
        self._lines[int(name[1:])] = f"{name}: {body}"

    def other(self, grammar: Grammar) -> str:
        """A reference to a whole grammar of its own."""
        name = f"g{len(self.others)}"
        self.others[name] = grammar
        return f"@{name}"
