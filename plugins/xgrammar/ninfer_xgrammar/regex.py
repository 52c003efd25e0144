"""Regular expressions as rules, of text or of what stands between the quotes of a JSON string."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator

from attrs import frozen

from ninfer_core.api import RequestError
from ninfer_grammars.lark import escaped, quoted

MAX_SIZE = 20_000
"""Characters of an expression with its repetitions written out."""
LAST = 0x10FFFF
Ranges = tuple[tuple[int, int], ...]
"""Code points, in order, without gaps of none between two."""
DIGITS: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
BLANKS: Ranges = ((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x2028, 0x2029), (0xFEFF, 0xFEFF))
ANY_CHAR: Ranges = ((0, LAST),)
IN_LINE: Ranges = ((0, 0x09), (0x0B, 0x0C), (0x0E, 0x2027), (0x202A, LAST))
_CLASSES = {"d": DIGITS, "w": WORD, "s": BLANKS}
_CONTROLS = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "0": 0}
_CODES = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|[xu]\{([0-9a-fA-F]{1,6})\}")
_COUNT = re.compile(r"\{(\d+)(,(\d*))?\}")
_SURROGATES: Ranges = ((0xD800, 0xDFFF),)
_SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}
_ESCAPED: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))


@frozen
class Piece:
    """A rule's body. :ivar size: with its repetitions written out."""

    body: str
    size: int


Char = Callable[[Ranges], str]
"""The body of one of some characters."""


def text_char(chars: Ranges) -> str:
    """As it is in a text."""
    kept = _without(chars, _SURROGATES)
    if not kept:
        raise _refusal("a class of no characters")
    if len(kept) == 1 and kept[0][0] == kept[0][1]:
        return quoted(chr(kept[0][0]))
    if kept[-1][1] == LAST:  # XGrammar makes less of it so
        return f"/[^{_listed(_without(ANY_CHAR, kept))}]/"
    return f"/[{_listed(kept)}]/"


def _listed(chars: Ranges) -> str:
    return "".join(
        escaped(chr(low)) + (f"-{escaped(chr(high))}" if high > low else "") for low, high in chars)


def json_char(chars: Ranges) -> str:
    """As it is in a JSON string: some characters are escaped there, each in one way."""
    plain = _without(chars, _ESCAPED)
    bodies = [text_char(plain)] if _without(plain, _SURROGATES) else []
    for code in (each for low, high in _ESCAPED for each in range(low, high + 1)):
        if any(low <= code <= high for low, high in chars):
            bodies.append(quoted("\\" + _SHORT.get(code, f"u{code:04x}")))
    return f"({' | '.join(bodies)})"


def repeated(body: str, least: int, most: int | None) -> str:
    """The body so many times. Counts cost time with every mask: where there is no limit, none is
    counted."""
    if most is not None:
        return f"{body}{{{least},{most}}}"
    return f"{body}{{{least}}} {body}*" if least > 1 else body + ("+" if least else "*")


def plain_char_but(others: str) -> str:
    """The body of a character that needs no escape in a JSON string, and is none of some."""
    barred = _merged([*_ESCAPED, *((ord(char), ord(char)) for char in others)])
    return text_char(_without(ANY_CHAR, barred))


def whole_match(regex: str, char: Char = text_char) -> str:
    """The body of all that an expression matches from its beginning to its end.

    :raises RequestError: naming what is malformed or not supported.
    """
    return _checked(_Reader(regex, char, ("", "")).whole())


def anywhere(regex: str, char: Char, around: str) -> str:
    """The body of all in which an expression matches somewhere.

    :param around: the body of what may stand before and behind it.
    """
    return _checked(_Reader(regex, char, (around, around)).whole())


class _Reader:
    """Reads an expression from the left.

    :param around: what may stand before and behind a branch that is not anchored there.
    """

    def __init__(self, regex: str, char: Char, around: tuple[str, str]) -> None:
        self._text, self._at, self._char, self._around = regex, 0, char, around
        self._dot = IN_LINE

    def whole(self) -> Piece:
        piece = self._union(0)
        if self._at < len(self._text):
            raise _refusal("a group that was not opened")
        return piece

    def _union(self, depth: int) -> Piece:
        if depth > 100:
            raise _refusal("groups that are nested too deeply")
        pieces = [self._branch(depth)]
        while self._take("|"):
            pieces.append(self._branch(depth))
        body = " | ".join(each.body for each in pieces)
        return Piece(f"({body})", sum(each.size for each in pieces))

    def _branch(self, depth: int) -> Piece:
        before, behind = ("", "") if depth else self._around
        if self._take("^"):
            if depth:
                raise _refusal("an anchor within a group")
            before = ""
        pieces = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if self._take("$"):
                if depth or (self._at < len(self._text) and self._text[self._at] != "|"):
                    raise _refusal("an anchor within a text or a group")
                behind = ""
                break
            pieces.append(self._repeated(self._one(depth)))
        bodies = [each for each in (before, *(each.body for each in pieces), behind) if each]
        return Piece(" ".join(bodies) or '""', 1 + sum(each.size for each in pieces))

    def _one(self, depth: int) -> Piece:
        if self._take("("):
            before = self._dot
            self._open_group()
            piece = self._union(depth + 1)
            if not self._take(")"):
                raise _refusal("an unclosed group")
            self._dot = before
            return piece
        found = self._text[self._at]
        if found in "*+?{":
            raise _refusal(f"{found!r} behind nothing")
        self._at += 1
        if found == "[":
            chars = self._class()
        elif found == ".":
            chars = self._dot
        elif found == "\\":
            chars = self._escape()
        elif found == "^":
            raise _refusal("an anchor within a text")
        else:
            chars = ((ord(found), ord(found)),)
        return Piece(self._char(chars), 1)

    def _open_group(self) -> None:
        if self._take("?:") or not self._take("?"):
            return
        if self._take("s:"):
            self._dot = ANY_CHAR
            return
        if named := re.compile(r"P?<\w+>").match(self._text, self._at):
            self._at = named.end()
            return
        kinds = {"=": "look-ahead", "!": "look-ahead", "<=": "look-behind", "<!": "look-behind"}
        rest = self._text[self._at : self._at + 2]
        raise _refusal(kinds.get(rest) or kinds.get(rest[:1]) or "such a group")

    def _repeated(self, piece: Piece) -> Piece:
        least, most = 1, 1
        if counted := _COUNT.match(self._text, self._at):
            self._at = counted.end()
            least = int(counted[1])
            most = least if counted[2] is None else int(counted[3] or -1)
        elif self._take("*"):
            least, most = 0, -1
        elif self._take("+"):
            least, most = 1, -1
        elif self._take("?"):
            least, most = 0, 1
        else:
            return piece
        self._take("?")  # whether it is greedy makes no difference to what it matches
        if most != -1 and most < least:
            raise _refusal("a repetition from more to less")
        body = repeated(piece.body, least, None if most == -1 else most)
        return Piece(body, piece.size * max(1, least, most))

    def _class(self) -> Ranges:
        negated, found = self._take("^"), list[tuple[int, int]]()
        while not self._take("]"):
            low = self._member()
            if self._take("-]"):
                found += [*low, (0x2D, 0x2D)]
                break
            if len(low) == 1 and low[0][0] == low[0][1] and self._take("-"):
                high = self._member()
                if len(high) != 1 or high[0][1] < low[0][0]:
                    raise _refusal("a range from more to less")
                found.append((low[0][0], high[0][1]))
            else:
                found += low
        chars = _merged(found)
        return _without(ANY_CHAR, chars) if negated else chars

    def _member(self) -> Ranges:
        if self._at >= len(self._text):
            raise _refusal("an unclosed class")
        found = self._text[self._at]
        self._at += 1
        return self._escape(in_class=True) if found == "\\" else ((ord(found), ord(found)),)

    def _escape(self, *, in_class: bool = False) -> Ranges:
        rest = self._text[self._at :]
        if coded := _CODES.match(rest):
            self._at += coded.end()
            code = int(next(filter(None, coded.groups())), 16)
            if code > LAST:
                raise _refusal(f"'\\{coded[0]}'")
            return ((code, code),)
        self._at += 1
        letter = rest[:1]
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter.lower() in _CLASSES:
            return _without(ANY_CHAR, _CLASSES[letter.lower()])
        if letter in _CONTROLS:
            return ((_CONTROLS[letter],) * 2,)
        if letter == "b" and in_class:
            return ((8, 8),)
        if not letter or letter.isalnum():
            raise _refusal(f"'\\{letter}'")
        return ((ord(letter), ord(letter)),)

    def _take(self, text: str) -> bool:
        is_there = self._text.startswith(text, self._at)
        self._at += len(text) * is_there
        return is_there


def json_text(text: str) -> str:
    """A text as it is in a JSON string, for the body of a rule."""
    return quoted(json.dumps(text, ensure_ascii=False)[1:-1])


def _checked(piece: Piece) -> str:
    if piece.size > MAX_SIZE:
        raise RequestError("the regular expression is too large", where="pattern",
                           why=f"{piece.size:,} of at most {MAX_SIZE:,} characters, written out")
    return piece.body


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    found = list[tuple[int, int]]()
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return tuple(found)


def _without(chars: Ranges, others: Ranges) -> Ranges:
    return tuple(_differences(chars, others))


def _differences(chars: Ranges, others: Ranges) -> Iterator[tuple[int, int]]:
    for low, high in chars:
        for begin, end in others:
            if begin <= high and end >= low:
                if begin > low:
                    yield low, begin - 1
                low = end + 1
        if low <= high:
            yield low, high


def _refusal(what: str) -> RequestError:
    return RequestError("the regular expression cannot be held to", where="pattern",
                        why=f"{what} is not supported")
