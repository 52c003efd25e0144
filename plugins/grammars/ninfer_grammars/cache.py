"""Compiled grammars of earlier requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Semaphore
from typing import Generic, TypeVar

T = TypeVar("T")


class CompileCache(Generic[T]):
    """Keeps the last results, by key. Equal keys that are asked for at once are compiled once; what
    fails is not kept.

    :param most: results kept. :param at_once: compilations at the same time.
    """

    def __init__(self, most: int, at_once: int) -> None:
        self._most, self._lock, self._turns = most, Lock(), Semaphore(at_once)
        self._found: OrderedDict[bytes, Future[T]] = OrderedDict()

    def get(self, key: bytes, compile: Callable[[], T]) -> T:
        """What ``compile`` returned for the key, or returns now; raises what it raises."""
        with self._lock:
            future = self._found.get(key)
            if is_new := future is None:
                future = self._found[key] = Future()
            self._found.move_to_end(key)
            while len(self._found) > self._most:
                self._found.popitem(last=False)
        if is_new:
            self._fill(key, future, compile)
        return future.result()

    def _fill(self, key: bytes, future: Future[T], compile: Callable[[], T]) -> None:
        try:
            with self._turns:
                future.set_result(compile())
        except BaseException as error:
            with self._lock:
                if self._found.get(key) is future:
                    del self._found[key]
            future.set_exception(error)
