"""The answer to a chat completion: one object, or chunks."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from ninfer_core.engine.request import Finished, Reading, Started
from ninfer_serve.answer import joined
from ninfer_serve.logprobs import LogprobReader
from ninfer_serve.openai.chat_choice import ChatChoice, Piece, message_of
from ninfer_serve.openai.chat_request import ChatRequest
from ninfer_serve.openai.chunks import Chunks
from ninfer_serve.openai.counts import timings_of, usage_of
from ninfer_serve.reasoning import reasoning_tokens
from ninfer_serve.service import Answer, ChoiceEvent, Service
from ninfer_serve.sse import batched


class ChatAnswer:
    """An answer that has begun; it can be had once."""

    def __init__(self, service: Service, answer: Answer, request: ChatRequest) -> None:
        self._frontend, self._answer, self._view = service.frontend, answer, request.view
        self._begun_at, self._cached = time.monotonic(), 0
        self._head = {"id": f"chatcmpl-{answer.id}", "object": "chat.completion",
                      "created": int(time.time()), "model": service.facts.name}
        self._tells = request.serve.logprobs is not None
        self._choices = [self._choice(index) for index in range(request.serve.num_choices)]

    async def complete(self) -> dict[str, Any]:
        """The whole answer; raises what it fails with."""
        pieces: list[list[Piece]] = [[] for _ in self._choices]
        async with self._answer as answer:
            async for events in answer:
                for each in joined(events):
                    pieces[each.choice] += self._choices[each.choice].feed(each.event)
        ends = self._ends()
        return {
            **self._head, "choices": [self._whole(*each) for each in enumerate(pieces)],
            "usage": self._usage(ends), "timings": timings_of(ends[0]),
        }

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The answer as chunks; raises what it fails with."""
        chunks = Chunks({**self._head, "object": "chat.completion.chunk"}, self._view.usage)
        opening = Piece({"role": "assistant", "content": ""})
        async with self._answer as answer:
            yield b"".join(self._frame(chunks, i, opening) for i in range(len(self._choices)))
            async for events in answer:
                fed = (frame for each in joined(events) for frame in self._feed(chunks, each))
                for frames in batched(fed):
                    yield frames
        yield chunks.ending(self._usage(self._ends()))

    def _feed(self, chunks: Chunks, each: ChoiceEvent) -> Iterator[bytes]:
        if self._view.progress and not each.choice:
            if isinstance(each.event, Started):
                self._cached = each.event.reuse.num_tokens
                yield self._progress(chunks, self._cached)
            elif isinstance(each.event, Reading):
                yield self._progress(chunks, each.event.num_tokens)
        for piece in self._choices[each.choice].feed(each.event):
            yield self._frame(chunks, each.choice, piece)

    def _frame(self, chunks: Chunks, index: int, piece: Piece) -> bytes:
        return chunks.frame({
            "index": index, "delta": piece.delta, "logprobs": _content(piece.logprobs),
            "finish_reason": piece.finish_reason,
        }, piece.finished)

    def _progress(self, chunks: Chunks, num_read: int) -> bytes:
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}
        return chunks.frame(choice, prompt_progress={
            "total": len(self._answer.prompt.token_ids), "cache": self._cached,
            "processed": num_read,
            "time_ms": round((time.monotonic() - self._begun_at) * 1000),
        })

    def _whole(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        tokens = [token for piece in pieces for token in piece.logprobs or ()]
        return {
            "index": index, "message": message_of(pieces),
            "logprobs": _content(tokens if self._tells else None),
            "finish_reason": pieces[-1].finish_reason,
        }

    def _choice(self, index: int) -> ChatChoice:
        reader = LogprobReader(self._frontend) if self._tells else None
        return ChatChoice(self._answer.id, index, reader)

    def _ends(self) -> list[Finished]:
        return [each.finished for each in self._choices if each.finished]

    def _usage(self, ends: list[Finished]) -> dict[str, Any]:
        marks, is_open = self._frontend.reasoning_tokens, self._answer.prompt.reasoning_open
        thought = sum(reasoning_tokens(each.token_ids, marks, is_open) for each in ends)
        return usage_of([ends], thought)


def _content(tokens: list[Any] | None) -> dict[str, Any] | None:
    return None if tokens is None else {"content": tokens, "refusal": None}
