"""The commit of a step's tokens, in its one order: preview, accept, publish."""

from __future__ import annotations

from itertools import groupby

from attrs import frozen

from ninfer_core.api import AnswerPart, OutputPart, ToolCall
from ninfer_core.engine.request import FinishReason, Logprobs, TextDelta, TokenLogprob
from ninfer_core.engine.sequence import Sequence


@frozen(eq=False)
class Preview:
    """Tokens that a request keeps, what they say, and why its output ends with them, if it does."""

    token_ids: list[int]
    parts: list[AnswerPart]
    reason: FinishReason | None


def settle(
    sequence: Sequence, candidates: list[int], *, certain: bool = True,
    reason: FinishReason | None = None, cause: Exception | None = None,
    logprobs: tuple[TokenLogprob, ...] = (),
) -> int:
    """Keep and publish tokens, and return how many; the sequence has an ending then, if it ends
    with them.

    :param reason: given, without candidates, to end it where it is.
    """
    before = sequence.num_output
    try:
        kept = preview(sequence, candidates, reason)
        if kept.token_ids:
            accept(sequence, kept.token_ids, certain=certain)
        publish(sequence, kept.parts, logprobs[: len(kept.token_ids)])
        if kept.reason is not None:
            sequence.ending = kept.reason, cause
    except Exception as error:  # a parser or a sink at fault fails its own request only
        sequence.ending = "error", error
    return sequence.num_output - before


def preview(
    sequence: Sequence, candidates: list[int], reason: FinishReason | None = None
) -> Preview:
    """Cut tokens that the model accepts after the first that ends the output: an end token, the
    end of a stop string, the last one within the limits.

    :param reason: given, without candidates, to end the output where it is.
    """
    kept: list[int] = []
    parts: list[AnswerPart] = []
    for token in candidates:
        kept.append(token)
        reason = _limit(sequence, len(kept))
        if token in sequence.end_ids:
            reason = "stop-token"
        else:
            parts += sequence.output.feed(token)
        if reason or sequence.output.matched:
            break
    if reason:
        parts += sequence.output.finish()
    return Preview(kept, parts, "stop-string" if sequence.output.matched else reason)


def accept(sequence: Sequence, token_ids: list[int], *, certain: bool) -> None:
    """Move the frontier by exactly these tokens, and say how many recorded rows to replay."""
    assert sequence.state is not None
    sequence.tokens += token_ids
    sequence.move_to(len(sequence.tokens) - 1)
    sequence.state.replay = 0 if certain else len(token_ids)
    if sequence.history is not None:
        for token in token_ids:
            sequence.history.append(token)
    if sequence.constraint is not None:
        sequence.constraint.commit(token_ids)


def publish(
    sequence: Sequence, parts: list[AnswerPart], logprobs: tuple[TokenLogprob, ...] = ()
) -> None:
    """Send logprobs, then the text, one delta for each run of a channel, and tool calls between."""
    if logprobs:
        sequence.sink(Logprobs(logprobs))
    for channel, run in groupby(parts, _channel):
        each = [*run]
        if channel is not None:
            text = "".join(part.text for part in each if isinstance(part, OutputPart))
            sequence.sink(TextDelta(channel, text))
        for call in (part for part in each if isinstance(part, ToolCall)):
            sequence.sink(call)


def _channel(part: AnswerPart) -> str | None:
    return part.channel if isinstance(part, OutputPart) else None


def _limit(sequence: Sequence, count: int) -> FinishReason | None:
    if sequence.num_output + count == sequence.request.max_tokens:
        return "output-limit"
    return "context-capacity" if len(sequence.tokens) + count == sequence.limit else None
