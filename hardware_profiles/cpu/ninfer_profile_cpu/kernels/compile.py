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

_alive: list[Any] = []  # native code lives as long as its CFunc


@functools.cache
def source_stamp() -> str:
    """Hash of all kernel sources: the instructions of a function come from several files."""
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _KernelCache(FunctionCache):
    """Numba's cache with one index file a variant, stamped with all sources.

    Numba keeps one index for all variants of a function; two processes that fill it at once can
    exchange their entries. With an index of its own, a variant can only meet itself. The key
    leaves out the closure, which holds inner kernels whose pickles differ from run to run.
    """

    def __init__(self, function: Callable[..., Any], variant: str = "") -> None:
        super().__init__(function)
        name = f"{self._impl.filename_base}.{variant}" if variant else self._impl.filename_base
        self._cache_file = IndexDataCacheFile(self._cache_path, name, source_stamp())

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return sig, codegen.magic_tuple()


def _disk_cache(function: Callable[..., Any], variant: str = "") -> FunctionCache | NullCache:
    try:
        return _KernelCache(function, variant)
    except RuntimeError:  # no directory can be written: every start compiles
        return NullCache()


def compile_native(function: Callable[..., None], variant: str = "") -> int:
    """Address of the native code of a function of int64, compiled now or read from disk.

    ``variant`` tells apart the functions that one factory makes, and must be a file name.
    """
    arguments = (i64,) * function.__code__.co_argcount
    compiled: Any = CFunc(function, (arguments, types.void), {}, {"error_model": "numpy"})
    compiled._cache = _disk_cache(function, variant)
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
