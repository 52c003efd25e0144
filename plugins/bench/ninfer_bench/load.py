"""``ninfer bench engine load``: clients that ask for twice what the pool holds."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from random import Random
from threading import Thread

from attrs import evolve

from ninfer_bench.clients import Client, start
from ninfer_bench.demand import LONGEST_OUTPUT, Kind, half_of_what_is_asked, requests_of
from ninfer_bench.load_report import Outcome, make_report
from ninfer_bench.models import Subject, open_subject
from ninfer_bench.report import Report
from ninfer_bench.residents import Residents, sample_until
from ninfer_bench.tally import Tally
from ninfer_bench.watch import Watch
from ninfer_core.api import NInferError
from ninfer_core.engine.client import EngineClient
from ninfer_core.engine.request import Event, Finished, GenerationRequest
from ninfer_core.state.step import PAGE_TOKENS

BYTES = 256
"""Ids below this are known to every byte-level tokenizer."""
PATIENCE_S = 120.0
"""For requests to end that have begun."""


def run(arguments: Namespace) -> Report:
    """Serve every kind alone, then all clients; audit at the end."""
    requests = requests_of(arguments.seed, arguments.kinds, arguments.longest, BYTES)
    pages = half_of_what_is_asked(requests, arguments.clients)
    context = arguments.longest + LONGEST_OUTPUT
    with open_subject(
        arguments, max_context=context, pool_tokens=pages * PAGE_TOKENS
    ) as subject:
        compares = not arguments.free_answers
        kinds = [Kind(each, _alone(subject, each) if compares else None) for each in requests]
        return make_report(arguments, subject, requests, _press(arguments, subject, kinds))


def _alone(subject: Subject, request: GenerationRequest) -> tuple[int, ...]:
    """The tokens that answer a request by itself, from no state of another's."""
    events: list[Event] = []
    subject.loaded.engine.submit(evolve(request, use_cache=False), events.append)
    subject.loaded.engine.run_until_idle()
    end = events[-1]
    assert isinstance(end, Finished)
    if end.cause:
        raise end.cause
    return end.token_ids


def _press(arguments: Namespace, subject: Subject, kinds: Sequence[Kind]) -> Outcome:
    """All clients, until the time is over and their last requests have ended."""
    engine, seconds = subject.loaded.engine, arguments.seconds
    engine.trace = watch = Watch()
    begin = time.monotonic()
    with EngineClient(engine) as serving:
        clients = [Client(serving, kinds, Random(f"{arguments.seed} {number}"))
                   for number in range(arguments.clients)]
        threads = start(clients, begin + seconds)
        samples = sample_until(lambda: time.monotonic() > begin + seconds)
        stuck = _join(threads)
    faults = [f"a client stopped: {client.fault!r}" for client in clients if client.fault]
    faults += [f"{stuck} clients wait for ever"] * bool(stuck) + _audit(subject)
    tally = Tally.of(client.tally for client in clients)
    return Outcome(tally, watch, Residents.of(samples), time.monotonic() - begin, tuple(faults))


def _join(threads: Sequence[Thread]) -> int:
    """How many do not end."""
    end = time.monotonic() + PATIENCE_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return sum(thread.is_alive() for thread in threads)


def _audit(subject: Subject) -> list[str]:
    """What is lost, now that all requests are gone and the cache is empty."""
    engine = subject.loaded.engine
    try:
        engine.audit()
    except NInferError as error:
        return [f"the audit fails: {error}"]
    pool = engine._store.pool
    lost = pool.num_pages - pool.num_free
    return [f"{lost} pages are lost"] * bool(lost)
