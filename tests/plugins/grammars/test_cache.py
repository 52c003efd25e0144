"""Compiled grammars are kept, and compiled once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock

import pytest

from ninfer_grammars.cache import CompileCache


def test_the_last_are_kept():
    cache, made = CompileCache[str](most=2, at_once=1), []

    def get(key):
        return cache.get(key.encode(), lambda: made.append(key) or key)

    assert [get(key) for key in "abab"] == [*"abab"] and made == ["a", "b"]
    assert [get(key) for key in "cacb"] == [*"cacb"]
    assert made == ["a", "b", "c", "a", "b"]


def test_what_fails_is_tried_again():
    cache = CompileCache[int](most=2, at_once=1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            cache.get(b"a", lambda: 1 // 0)
    assert cache.get(b"a", lambda: 3) == 3


def test_equal_keys_at_once_are_compiled_once_and_others_a_few_at_a_time():
    cache, lock, start = CompileCache[int](most=9, at_once=2), Lock(), Barrier(12)
    running = most = 0
    made = []

    def compile(key):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        made.append(key)
        with lock:
            running -= 1
        return key

    def ask(number):
        start.wait()
        return cache.get(bytes([number % 4]), lambda: compile(number % 4))

    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(ask, range(12)))
    assert found == [number % 4 for number in range(12)]
    assert sorted(made) == [0, 1, 2, 3] and most <= 2
