"""The answers to a text completion: one object, or chunks."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from ninfer_core.engine.request import Finished
from ninfer_serve.openai.batch import answer_all
from ninfer_serve.openai.chunks import Chunks
from ninfer_serve.openai.completion_choice import COLUMNS, CompletionChoice, TextPiece
from ninfer_serve.openai.completion_request import CompletionRequest
from ninfer_serve.openai.counts import timings_of, usage_of
from ninfer_serve.serve_request import ServeRequest
from ninfer_serve.service import Answer, ChoiceEvent, Service
from ninfer_serve.sse import batched


class CompletionAnswer:
    """Answers that have begun; they can be had once."""

    def __init__(self, service: Service, first: Answer, request: CompletionRequest) -> None:
        self._service, self._first, self._request = service, first, request
        self._head = {"id": f"cmpl-{first.id}", "object": "text_completion",
                      "created": int(time.time()), "model": service.facts.name}
        self._per_prompt = request.serve[0].num_choices
        self._choices = [
            self._choice(each) for each in request.serve for _ in range(self._per_prompt)
        ]

    async def complete(self) -> dict[str, Any]:
        """All answers; raises what one fails with."""
        pieces: list[list[TextPiece]] = [[] for _ in self._choices]
        async for events in self._events():
            for each in events:
                pieces[each.choice] += self._choices[each.choice].feed(each.event)
        ends = self._ends()
        return {
            **self._head, "choices": [_whole(*each) for each in enumerate(pieces)],
            "usage": usage_of(ends, 0), "timings": timings_of(ends[0][0]),
        }

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The answers as chunks; raises what one fails with."""
        chunks = Chunks(self._head, self._request.view.usage)
        async for events in self._events():
            fed = (
                chunks.frame(_shown(each.choice, piece), piece.finished)
                for each in events for piece in self._choices[each.choice].feed(each.event)
            )
            for frames in batched(fed):
                yield frames
        yield chunks.ending(usage_of(self._ends(), 0))

    def _events(self) -> AsyncGenerator[list[ChoiceEvent], None]:
        return answer_all(self._service, self._request.serve, self._first)

    def _choice(self, request: ServeRequest) -> CompletionChoice:
        tokenizer, prompt = self._service.frontend.tokenizer, request.prompt
        if not self._request.echo or prompt is None:
            echo = ""
        elif isinstance(prompt, str):
            echo = prompt
        else:
            echo = b"".join(map(tokenizer.token_bytes, prompt)).decode(errors="replace")
        return CompletionChoice(tokenizer, echo, tells=request.logprobs is not None)

    def _ends(self) -> list[list[Finished]]:
        """Of each prompt."""
        ends = [each.finished for each in self._choices if each.finished]
        return [
            ends[at : at + self._per_prompt] for at in range(0, len(ends), self._per_prompt)
        ]


def _whole(index: int, pieces: list[TextPiece]) -> dict[str, Any]:
    """A choice of all its pieces."""
    tables = [each.logprobs for each in pieces if each.logprobs is not None]
    joined = {name: [value for table in tables for value in table[name]] for name in COLUMNS}
    text = "".join(each.text for each in pieces)
    return _shown(index, TextPiece(text, joined if tables else None, pieces[-1].finished))


def _shown(index: int, piece: TextPiece) -> dict[str, Any]:
    return {"index": index, "text": piece.text, "logprobs": piece.logprobs,
            "finish_reason": piece.finish_reason}
