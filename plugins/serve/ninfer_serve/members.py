"""Members of JSON objects that clients send: each is read with a check that names its place."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn

from attrs import frozen

from ninfer_core.api import RequestError


@frozen
class Members:
    """A JSON object, whose members may be absent or null alike.

    Each reader gives None for such a member, and raises `RequestError` for one of another kind.

    :ivar path: its place in the body; "" for the body itself.
    """

    values: Mapping[str, Any]
    path: str = ""

    @classmethod
    def of(cls, value: Any, path: str = "") -> Members:
        if not isinstance(value, dict):
            refuse(path or "body", "an object", value)
        return cls(value, path)

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def place(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def text(self, name: str, *, longest: int | None = None) -> str | None:
        value = self._kind(name, str, "a string")
        if value is not None and longest is not None and len(value) > longest:
            refuse(self.place(name), f"at most {longest} characters", value)
        return value

    def need_text(self, name: str) -> str:
        """A string that must be there, and not be empty."""
        value = self.text(name)
        if not value:
            refuse(self.place(name), "a string that is not empty", value)
        return value

    def flag(self, name: str) -> bool | None:
        return self._kind(name, bool, "a boolean")

    def integer(self, name: str, least: int, most: int | None = None) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if type(value) is float and value.is_integer():  # what some languages make of 8
            value = int(value)
        if type(value) is not int or value < least or (most is not None and value > most):
            limit = f"{least} or more" if most is None else f"{least} to {most}"
            refuse(self.place(name), f"an integer, {limit}", self.values[name])
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        value = self.values.get(name)
        if value is None:
            return None
        if type(value) not in (int, float) or not least <= value <= most:
            refuse(self.place(name), f"a number from {least:g} to {most:g}", value)
        return float(value)

    def one_of(self, name: str, allowed: Collection[str]) -> str | None:
        value = self.text(name)
        if value is not None and value not in allowed:
            refuse(self.place(name), f"one of {', '.join(sorted(allowed))}", value)
        return value

    def object(self, name: str) -> Members | None:
        value = self._kind(name, dict, "an object")
        return None if value is None else Members(value, self.place(name))

    def array(self, name: str) -> list[Any]:
        """Empty if absent."""
        value: list[Any] | None = self._kind(name, list, "an array")
        return value or []

    def objects(self, name: str) -> Iterator[Members]:
        """The elements of an array of objects."""
        for index, each in enumerate(self.array(name)):
            yield Members.of(each, f"{self.place(name)}[{index}]")

    def _kind(self, name: str, kind: type, wanted: str) -> Any:
        value = self.values.get(name)
        if value is not None and not isinstance(value, kind):
            refuse(self.place(name), wanted, value)
        return value


def refuse(place: str, wanted: str, value: Any) -> NoReturn:
    """Raise `RequestError`: what is at ``place`` must be ``wanted``."""
    found = "it is missing" if value is None else f"it is {reprlib.repr(value)}"
    raise RequestError("malformed request", where=place, why=f"must be {wanted}; {found}")
