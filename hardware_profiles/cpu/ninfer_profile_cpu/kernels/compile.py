"""Compile kernels to native code, with a disk cache that notices every change of source.

Native functions take int64 only (addresses, counts, bits of floats) and call each other by address,
so that each is compiled once, whatever uses it: a weight format is two such functions, a KV codec
two, an op one. Python calls a single one of them, `launch.launch`.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
from collections.abc import Callable
from typing import Any

from numba import njit, types
from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache
from numba.core.ccallback import CFunc

i64 = types.int64

inline = njit(
    no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", no_rewrites=True
)
"""Decorator of what native functions are made of: compiled into each of them, callable from
nowhere else."""

def named(function: Callable[..., Any], variant: object) -> Callable[..., Any]:
    """A function that a factory makes, under a name that tells it from the factory's others.

    Numba names native symbols after the function and a count of the process that compiled it. What
    is read from disk brings the count of another process, so two functions of one name can get one
    symbol, and a call would reach the wrong one.
    """
    function.__qualname__ += f".{variant}"
    return function


_alive: list[Any] = []  # native code lives as long as its CFunc


@functools.cache
def source_stamp() -> str:
    """Hash of all kernel sources: the instructions of a function come from several files."""
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _KernelCache(FunctionCache):
    """Numba's cache, stamped with all sources.

    A function has an index file of its own, since its name tells it from all others: in a shared
    one, two processes that fill it at once can exchange their entries. The key leaves out the
    closure, which holds inner kernels whose pickles differ from run to run.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        base = self._impl.filename_base
        self._cache_file = IndexDataCacheFile(self._cache_path, base, source_stamp())

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return sig, codegen.magic_tuple()


def _disk_cache(function: Callable[..., Any]) -> FunctionCache | NullCache:
    try:
        return _KernelCache(function)
    except RuntimeError:  # no directory can be written: every start compiles
        return NullCache()


def compile_native(function: Callable[..., None]) -> int:
    """Address of the native code of a function of int64, compiled now or read from disk.

    What a factory makes must be `named`.
    """
    arguments = (i64,) * function.__code__.co_argcount
    compiled: Any = CFunc(function, (arguments, types.void), {}, {"error_model": "numpy"})
    compiled._cache = _disk_cache(function)
    compiled.compile()
    _alive.append(compiled)
    return int(compiled.address)


def entry(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator: a native function of int64 that Python can call, for 20 ns an argument."""
    dispatcher: Any = njit(error_model="numpy")(function)
    dispatcher._cache = _disk_cache(function)
    dispatcher.compile(types.void(*(i64,) * function.__code__.co_argcount))
    dispatcher.disable_compile()
    return dispatcher
