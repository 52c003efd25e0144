"""How much of an answer was reasoning."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_core.api import ReasoningTokens


def reasoning_tokens(
    token_ids: Sequence[int], marks: ReasoningTokens | None, reasoning_open: bool
) -> int:
    """Tokens of reasoning blocks, with their marks."""
    if marks is None:
        return 0
    count, is_open = 0, reasoning_open
    for token_id in token_ids:
        is_open = is_open or token_id == marks.opening
        count += is_open
        is_open = is_open and token_id != marks.closing
        if not is_open and token_id != marks.closing and token_id not in marks.spaces:
            break
    return count
