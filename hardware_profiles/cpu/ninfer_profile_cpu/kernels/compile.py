"""Compile kernels to native code, with a disk cache that notices every change of source.

A *body* is a Python function ``body(args, begin, end, scratch)`` over 64-bit integers: ``args`` is
the address of a block of int64 arguments, ``begin:end`` the work items to do, ``scratch`` the
address of memory that belongs to the calling worker.  One signature for all bodies means one
launcher for all kernels (see `launch`) and none of Numba's parallel compilation, which costs
seconds a kernel.  An *entry* is what Python calls: it fills argument blocks and launches bodies.
"""

import functools
import hashlib
import pathlib

from numba import njit, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc

i64 = types.int64
BODY_SIGNATURE = types.void(i64, i64, i64, i64)

_alive: list[CFunc] = []  # native code lives as long as its CFunc


@functools.cache
def source_stamp() -> str:
    """Hash of all kernel sources: the instructions of a body come from several files."""
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _KernelCache(FunctionCache):
    """Numba's cache with one index file a variant, stamped with all sources.

    Numba keeps one index for all variants of a function; two processes that fill it at once can
    exchange their entries.  With an index of its own, a variant can only meet itself.  The key
    leaves out the closure, which holds inner kernels whose pickles differ from run to run.
    """

    def __init__(self, function, variant: str):
        super().__init__(function)
        name = f"{self._impl.filename_base}.{variant}" if variant else self._impl.filename_base
        self._cache_file = IndexDataCacheFile(self._cache_path, name, source_stamp())

    def _index_key(self, sig, codegen):
        return sig, codegen.magic_tuple()


def compile_body(function, variant: str = "", signature=BODY_SIGNATURE) -> int:
    """Address of the native code of ``function``, compiled now or read from the disk cache.

    ``variant`` tells apart the functions that one factory makes, and must be a file name.
    """
    compiled = CFunc(function, (signature.args, signature.return_type), {}, {"error_model": "numpy"})
    compiled._cache = _KernelCache(function, variant)
    compiled.compile()
    _alive.append(compiled)
    return compiled.address


def entry(num_args: int):
    """Decorator: a function of ``num_args`` int64 that Python calls at the price of a C function."""

    def decorate(function):
        dispatcher = njit(error_model="numpy")(function)
        dispatcher._cache = _KernelCache(function, "")
        dispatcher.compile(types.void(*[i64] * num_args))
        dispatcher.disable_compile()
        return dispatcher

    return decorate
