"""Lazy references: the heavy half of a spec is named, not imported."""

from __future__ import annotations

import importlib
import re
from typing import Any

from attrs import field, frozen

from ninfer_core.api.errors import PluginError

_PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def _check(_: object, __: object, value: str) -> None:
    if not isinstance(value, str) or not _PATTERN.fullmatch(value):
        raise PluginError(
            "malformed lazy reference",
            why=f"{value!r} is not of the form 'package.module:attribute'",
        )


@frozen
class LazyRef:
    """A reference of the form ``package.module:attribute``, imported by :meth:`load` only.

    :raises PluginError: at construction if the text is malformed, at :meth:`load` if the module
        cannot be imported or lacks the attribute.
    """

    path: str = field(validator=_check)

    def load(self) -> Any:
        """Import the module and return the attribute."""
        module_name, _, attribute = self.path.partition(":")
        try:
            value: Any = importlib.import_module(module_name)
            for part in attribute.split("."):
                value = getattr(value, part)
        except (ImportError, AttributeError) as error:
            raise PluginError(
                "cannot load what a spec points to", where=self.path, why=str(error),
                fix="correct the reference in the plugin's spec",
            ) from error
        return value

    def __str__(self) -> str:
        return self.path


def to_lazy(value: str | LazyRef) -> LazyRef:
    """Converter for spec fields: plain text is accepted where a :class:`LazyRef` is stored."""
    return value if isinstance(value, LazyRef) else LazyRef(value)


def to_optional_lazy(value: str | LazyRef | None) -> LazyRef | None:
    """Like :func:`to_lazy`, with None kept."""
    return None if value is None else to_lazy(value)
