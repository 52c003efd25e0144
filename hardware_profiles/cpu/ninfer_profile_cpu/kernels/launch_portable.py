"""A stand-in for ``GOMP_parallel`` on Numba's own thread pool, for systems without libgomp."""

import functools

from llvmlite import ir
from numba import cfunc, njit, prange, types
from numba.extending import intrinsic

from .vector_ir import I64

i64 = types.int64


@intrinsic
def _call_worker(typing_context, worker, job):
    def generate(context, b, signature, args):
        typ = ir.FunctionType(ir.VoidType(), [I64])
        b.call(b.inttoptr(args[0], typ.as_pointer()), [args[1]])
        return context.get_dummy_value()

    return types.void(i64, i64), generate


@functools.cache
def fork() -> int:
    """Address of ``fork(worker, job, num_threads, flags)``.

    Compiled at every start: Numba cannot load parallel code into a callback from its disk cache.
    """

    @njit(parallel=True)
    def run(worker, job, num_threads):
        for _ in prange(num_threads):
            _call_worker(worker, job)

    @cfunc(types.void(i64, i64, types.int32, types.int32))
    def portable_fork(worker, job, num_threads, flags):
        run(worker, job, num_threads)

    _alive.append(portable_fork)
    return portable_fork.address


_alive: list = []
