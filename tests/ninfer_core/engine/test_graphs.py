"""Captured steps, with a stand-in for the GPU: a graph that runs the model again."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from ninfer_fixtures.letters import VOCAB


@pytest.fixture
def device(monkeypatch):
    """Graphs as they are captured; each counts its replays."""

    class Graph:
        def __init__(self):
            self.replays, self.run = 0, None
            graphs.append(self)

        def replay(self):
            self.replays += 1
            self.logits.copy_(self.run())

    @contextmanager
    def capturing(graph, *, pool, capture_error_mode):
        assert (pool, capture_error_mode) == ("pool", "thread_local")
        yield
        graph.run = calls[-1]
        graph.logits = results[-1]

    def watch(model):
        forward = model.forward

        def watched(batch):
            if not batch.slots[: batch.num_rows].any():  # padding, which this model refuses
                return torch.zeros(batch.num_logits, VOCAB)
            return forward(batch)

        def capturable(batch):
            calls.append(lambda: watched(batch))
            results.append(watched(batch))
            return results[-1]

        monkeypatch.setattr(model, "forward", capturable)

    graphs, calls, results = [], [], []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    return graphs, watch


def require_same_answers(kit, watch, requests, build):
    """Of an engine without graphs, and of one with."""
    answers = []
    for captures in (False, True):
        parts = build()
        if captures:
            watch(parts.model)
            parts.engine.capture()
        answers.append([events[-1].token_ids for events in kit.serve(parts, *requests)])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("drafts", [False, True])
def test_answers_are_the_same(kit, device, drafts):
    """Requests of several lengths, so that all numbers of rows come; with drafts, some rows have
    fewer than others, which no graph is for."""
    graphs, watch = device
    requests = [kit.ask(length, first=length, max_tokens=count, ignore_eos=True)
                for length, count in ((70, 24), (3, 5), (9, 13))]
    require_same_answers(kit, watch, requests, lambda: kit.build(
        max_sequences=3, speculator=kit.Oracle(3) if drafts else None))
    chunk, *steps = graphs
    assert chunk.replays == 1  # of 70 tokens
    assert len(steps) == (6 if drafts else 3)
    assert sum(graph.replays for graph in steps) > 0


def test_whole_chunks_are_replayed(kit, device, monkeypatch):
    """By the graph of the least bound of pages that holds their context; a last one of fewer tokens
    is not."""
    monkeypatch.setattr("ninfer_core.state.batch.FEW_PAGES", 2)
    graphs, watch = device
    requests = [kit.ask(200, first=1, max_tokens=3, ignore_eos=True),
                kit.ask(450, first=2, max_tokens=3, ignore_eos=True)]
    require_same_answers(
        kit, watch, requests, lambda: kit.build(max_sequences=1, cache=False))
    assert [graph.replays for graph in graphs[:2]] == [6, 4]  # of eight pages, and of two


def test_capture_tells_how_far_it_is(kit, device):
    seen = []
    parts = kit.build(max_sequences=4)
    device[1](parts.model)
    parts.engine.capture(lambda *step: seen.append(step))
    assert seen == [("graphs", done, 5) for done in range(1, 6)]
