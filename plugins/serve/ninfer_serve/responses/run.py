"""A response while it is made: events of the engine in, events of the API out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ninfer_core.api import ToolCall
from ninfer_core.engine.request import Event, Finished, Logprobs, TextDelta
from ninfer_serve.errors import failure_of, message_of, status_of
from ninfer_serve.logprobs import LogprobReader
from ninfer_serve.responses.output import Output, ServerEvent
from ninfer_serve.responses.request import ResponseRequest
from ninfer_serve.responses.resource import Resource, ended, failed, new_resource
from ninfer_serve.service import Answer, Service


class ResponseRun:
    """One response.

    :param keep: stores a response that ended, and says whether it did.
    :ivar resource: the response as it is now.
    """

    def __init__(
        self, service: Service, request: ResponseRequest, answer: Answer,
        keep: Callable[[Resource], bool],
    ) -> None:
        frontend, self._prompt, self._keep = service.frontend, answer.prompt, keep
        self._marks = frontend.reasoning_tokens
        self._output = Output(answer.id, request.tools, seals=request.seals)
        self._logprobs = None if request.serve.logprobs is None else LogprobReader(frontend)
        self.resource = new_resource(
            request, f"resp_{answer.id}", service.facts.name, answer.sampling
        )

    def opening(self) -> Iterator[ServerEvent]:
        """The first events."""
        yield {"type": "response.created", "response": self.resource}
        yield self.beat()

    def beat(self) -> ServerEvent:
        """That it goes on: clients wait for events, and comments are none."""
        return {"type": "response.in_progress", "response": self.resource}

    def take(self, event: Event) -> Iterator[ServerEvent]:
        """What the API says for an event of the engine; raises what the response fails with."""
        if isinstance(event, TextDelta):
            logprobs = self._logprobs.of(event.text) if self._logprobs else []
            yield from self._output.text(event, logprobs)
        elif isinstance(event, ToolCall):
            if self._logprobs:
                self._logprobs.skip()
            yield from self._output.call(event)
        elif isinstance(event, Logprobs) and self._logprobs:
            self._logprobs.feed(event)
        elif isinstance(event, Finished):
            yield from self._finish(event)

    def fail(self, error: Exception) -> Iterator[ServerEvent]:
        """The last events of a response that fails."""
        yield from self._output.close("incomplete")
        code, items = status_of(error)[1], self._output.items
        self.resource = failed(self.resource, items, code, message_of(error))
        yield {"type": "response.failed", "response": self.resource}

    def _finish(self, finished: Finished) -> Iterator[ServerEvent]:
        if error := failure_of(finished):
            raise error
        made = ended(self.resource, finished, self._marks,
                     reasoning_open=self._prompt.reasoning_open)
        yield from self._output.close(made["status"])
        self.resource = {**made, "output": self._output.items}
        if made["store"] and not self._keep(self.resource):
            self.resource["store"] = False
        yield {"type": f"response.{made['status']}", "response": self.resource}
