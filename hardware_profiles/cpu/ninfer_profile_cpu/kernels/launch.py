"""Run a kernel body on all cores: one fork and join for all kernels.

The threads are those of the OpenMP runtime that torch has already loaded (``GOMP_parallel``), so
there is one pool in the process: no second pool that spins against torch's, and a fork and join
for under a microsecond.  Numba's own parallel loops would start a second pool and cost 5 to 50.

Every worker owns a range of the work items, so that it reads one stretch of the weights, and when
its range is empty it takes items of the others, so that a core that is disturbed does fewer.  Which
core does an item never changes its bits.
"""

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .memory import arg, atomic_add, fill, stack_block, store_int64
from .vector_ir import I32, I64

i64 = types.int64

# Fields of a pool block (int64 each), see `pool.Pool`.
PARALLEL, NUM_THREADS, WORKER, SCRATCH, SCRATCH_STRIDE = range(5)
# Fields of a job block; behind them, one cache line a worker with the next item of its range.
BODY, NUM_ITEMS, GRAIN, ARGS, POOL, NUM_WORKERS, NEXT_WORKER, FIRST_COUNTER = range(8)

COUNTER_BYTES = 64
MAX_WORKERS = 64
JOB_FIELDS = FIRST_COUNTER + MAX_WORKERS * COUNTER_BYTES // 8


@intrinsic
def _call_body(typing_context, body, args, begin, end, scratch):
    def generate(context, b, signature, values):
        typ = ir.FunctionType(ir.VoidType(), [I64] * 4)
        b.call(b.inttoptr(values[0], typ.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.void(*[i64] * 5), generate


@intrinsic
def _fork(typing_context, parallel, worker, job, num_threads):
    """``GOMP_parallel(worker, job, num_threads, flags=0)``: returns when all threads have."""

    def generate(context, b, signature, values):
        typ = ir.FunctionType(ir.VoidType(), [I64, I64, I32, I32])
        count = b.trunc(values[3], I32)
        b.call(b.inttoptr(values[0], typ.as_pointer()), [values[1], values[2], count, ir.Constant(I32, 0)])
        return context.get_dummy_value()

    return types.void(*[i64] * 4), generate


@njit
def _range_start(job, owner):
    return owner * arg(job, NUM_ITEMS) // arg(job, NUM_WORKERS)


@njit
def _drain(job, owner, scratch):
    """Take items of one worker's range until none is left."""
    counter = job + 8 * FIRST_COUNTER + owner * COUNTER_BYTES
    grain, end = arg(job, GRAIN), _range_start(job, owner + 1)
    begin = atomic_add(counter, grain)
    while begin < end:
        _call_body(arg(job, BODY), arg(job, ARGS), begin, min(begin + grain, end), scratch)
        begin = atomic_add(counter, grain)


def worker(job):
    """What each thread of a fork does: its own range first, then what is left of the others."""
    me, pool, num_workers = atomic_add(job + 8 * NEXT_WORKER, 1), arg(job, POOL), arg(job, NUM_WORKERS)
    scratch = arg(pool, SCRATCH) + arg(pool, SCRATCH_STRIDE) * me
    for i in range(num_workers):
        _drain(job, (me + i) % num_workers, scratch)


@njit
def launch(pool, body, num_items, grain, args):
    """Run ``body`` over ``num_items`` in steps of ``grain``, on one core if that is one step."""
    num_workers = min(arg(pool, NUM_THREADS), (num_items + grain - 1) // grain, MAX_WORKERS)
    if num_workers <= 1:
        _call_body(body, args, 0, num_items, arg(pool, SCRATCH))
        return
    job = stack_block(JOB_FIELDS)
    fill(job, (body, num_items, grain, args, pool, num_workers, i64(0)))
    for owner in range(num_workers):
        store_int64(job + 8 * FIRST_COUNTER + owner * COUNTER_BYTES, _range_start(job, owner))
    _fork(arg(pool, PARALLEL), arg(pool, WORKER), job, num_workers)
