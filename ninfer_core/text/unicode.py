"""Text that has a UTF-8 form."""

from __future__ import annotations


def unicode_scalars(text: str) -> str:
    """``text`` with lone surrogates, which JSON can carry and UTF-8 cannot, as U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
