"""Responses: what they go on from, how they are made, and which are kept."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from itertools import count

from ninfer_serve.answer import joined
from ninfer_serve.errors import HttpError
from ninfer_serve.members import Members
from ninfer_serve.responses.items import with_ids
from ninfer_serve.responses.output import ServerEvent
from ninfer_serve.responses.request import ResponseRequest, read_request
from ninfer_serve.responses.resource import Resource
from ninfer_serve.responses.run import ResponseRun
from ninfer_serve.responses.store import ResponseStore, StoredResponse, size_of
from ninfer_serve.serve_request import ServeRequest
from ninfer_serve.service import Answer, Service
from ninfer_serve.sse import dumps, frame, with_error, with_heartbeat

Framing = Callable[[Iterable[ServerEvent]], bytes]


class Responses:
    """Makes responses, and keeps those that are to be stored."""

    def __init__(self, service: Service, store: ResponseStore) -> None:
        self._service, self._store = service, store

    def read(self, body: Members) -> ResponseRequest:
        """Raises `RequestError` for what cannot be served."""
        known = self._store.item
        return read_request(body, self._service.facts.name, known)

    def stored(self, response_id: str) -> StoredResponse:
        """Raises `HttpError` if there is none."""
        if (found := self._store.get(response_id)) is None:
            raise _not_found(response_id)
        return found

    def forget(self, response_id: str) -> None:
        """Raises `HttpError` if there is none."""
        if not self._store.delete(response_id):
            raise _not_found(response_id)

    def serve_request(self, request: ResponseRequest) -> ServeRequest:
        """What is asked of the model, with all that the response goes on from."""
        previous = self._previous(request)
        if previous is None:
            return request.serve_request()
        return request.serve_request(previous.context(), previous.preserve_thinking)

    async def whole(self, request: ResponseRequest) -> Resource:
        """The complete response; raises what it fails with."""
        answer, run = await self._begin(request)
        async with answer:
            async for batch in answer:
                for each in joined(batch):
                    for _ in run.take(each.event):
                        pass
        return run.resource

    async def stream(self, request: ResponseRequest) -> AsyncGenerator[bytes, None]:
        """The response as events, once it is submitted; what it fails with then is one."""
        answer, run = await self._begin(request)
        numbered = partial(_frames, count())
        return with_error(
            with_heartbeat(_events(answer, run, numbered), lambda: numbered([run.beat()]),
                           self._service.heartbeat_s),
            lambda error: numbered(run.fail(error)),
        )

    async def _begin(self, request: ResponseRequest) -> tuple[Answer, ResponseRun]:
        previous = self._previous(request)
        if request.store and size_of(request.items) > self._store.max_bytes:
            raise HttpError(400, "response_store_capacity_exceeded",
                            "the input is too large to be stored", where="store",
                            why=f"the store has {self._store.max_bytes} bytes",
                            fix="send store: false, and all items each time")
        answer = await self._service.start(self.serve_request(request))
        return answer, ResponseRun(
            self._service, request, answer, partial(self._keep, request, previous))

    def _previous(self, request: ResponseRequest) -> StoredResponse | None:
        if request.previous is None:
            return None
        if (found := self._store.get(request.previous)) is None:
            raise HttpError(
                400, "previous_response_not_found", "the previous response is not there",
                where="previous_response_id",
                why="it was never stored (store: false), was deleted, or made room for others",
                fix="send the items of the conversation instead",
            )
        return found

    def _keep(
        self, request: ResponseRequest, previous: StoredResponse | None, resource: Resource
    ) -> bool:
        preserve = request.serve.options.preserve_thinking
        if preserve is None and previous is not None:
            preserve = previous.preserve_thinking
        items = tuple(with_ids(request.items, resource["id"].removeprefix("resp_")))
        return self._store.put(StoredResponse(resource, items, previous, preserve))


async def _events(
    answer: Answer, run: ResponseRun, numbered: Framing
) -> AsyncGenerator[bytes, None]:
    async with answer:
        yield numbered(run.opening())
        async for batch in answer:
            events = list[ServerEvent]()
            try:
                for each in joined(batch):
                    events.extend(run.take(each.event))
            finally:
                if events:
                    yield numbered(events)


def _frames(numbers: count[int], events: Iterable[ServerEvent]) -> bytes:
    """Events as bytes, with the next numbers."""
    return b"".join(
        frame(dumps({"type": each["type"], "sequence_number": next(numbers), **each}), each["type"])
        for each in events
    )


def _not_found(response_id: str) -> HttpError:
    return HttpError(404, "response_not_found", f"there is no response {response_id!r}")
