"""Several requests that are answered together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from ninfer_serve.answer import joined
from ninfer_serve.serve_request import ServeRequest
from ninfer_serve.service import Answer, ChoiceEvent, Service

_Batch = list[ChoiceEvent] | Exception | None


async def answer_all(
    service: Service, requests: Sequence[ServeRequest], first: Answer
) -> AsyncGenerator[list[ChoiceEvent], None]:
    """Events of all answers as they come, choices numbered through; raises what a request fails
    with. As many requests run at once as the engine serves.

    :param requests: for equally many choices each. :param first: answer to the first of them.
    """
    if len(requests) == 1:  # nothing to bring together
        async with first as answer:
            async for events in answer:
                yield joined(events)
        return
    count = requests[0].num_choices
    gate = asyncio.Semaphore(max(1, service.facts.max_concurrency // count))
    queue: asyncio.Queue[_Batch] = asyncio.Queue(maxsize=len(requests))

    async def run(index: int, request: ServeRequest) -> None:
        try:
            async with gate, (await service.start(request) if index else first) as answer:
                async for events in answer:
                    await queue.put([
                        ChoiceEvent(index * count + each.choice, each.event)
                        for each in joined(events)
                    ])
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.ensure_future(run(*each)) for each in enumerate(requests)]
    try:
        left = len(requests)
        while left:
            batch = await queue.get()
            if isinstance(batch, Exception):
                raise batch
            left -= batch is None
            if batch:
                yield batch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
