"""Run the body of an op on all cores: one fork and join for all ops, for about a microsecond.

A *body* is a native function ``body(args, begin, end, scratch)``: ``args`` is the address of a
block of arguments, ``begin:end`` the work items to do, ``scratch`` memory of the worker alone.

The caller is worker 0; the helpers are threads of `pool.Pool` that spin for a while and then sleep.
Every worker owns a range of the items, so that it reads one stretch of the weights, and takes items
of the others when its own are done. A helper that comes late, because it slept or another process
has its core, is not waited for: the others do its items. Which core does an item, and how many
cores there are, never changes a bit of the result.

A job is open while ``TURN`` is odd. A helper announces itself in ``ACTIVE`` before it looks at the
turn again, and the caller closes the job before it waits for ``ACTIVE`` to be 0 (Dekker): no helper
can touch a job that its caller believes finished.
"""

from numba import types

from .compile import entry, inline
from .memory import arg, call, pack, store_int64
from .threads import atomic_add, atomic_load, pause

i64 = types.int64

# The pool block: int64 fields, and lines of their own for what threads write (see `pool.Pool`).
NUM_THREADS, SCRATCH, SCRATCH_STRIDE, SPINS, MUTEX, CONDITION = range(6)
LOCK, UNLOCK, WAIT, WAKE_ALL, YIELD = range(6, 11)  # functions of the C library
ENDED = 11  # whether helpers are to return
BODY, ARGS, NUM_ITEMS, GRAIN, NUM_WORKERS = range(16, 21)  # the job
LINE_FIELDS = 8  # int64 of a cache line
TURN, ACTIVE, SLEEPERS, COUNTERS = (LINE_FIELDS * line for line in range(3, 7))
MAX_WORKERS = 64
NUM_FIELDS = COUNTERS + LINE_FIELDS * MAX_WORKERS


@inline
def _field(pool, index):
    return pool + 8 * index


@inline
def _range_start(pool, owner):
    return owner * arg(pool, NUM_ITEMS) // arg(pool, NUM_WORKERS)


@inline
def _drain(pool, owner, scratch):
    """Do items of one worker's range until none is left."""
    counter = _field(pool, COUNTERS + owner * LINE_FIELDS)
    grain, end = arg(pool, GRAIN), _range_start(pool, owner + 1)
    begin = atomic_add(counter, grain)
    while begin < end:
        call(arg(pool, BODY), (arg(pool, ARGS), begin, min(begin + grain, end), scratch))
        begin = atomic_add(counter, grain)


@inline
def _work(pool, me):
    """The worker's own range first, then what is left of the others."""
    scratch = arg(pool, SCRATCH) + arg(pool, SCRATCH_STRIDE) * me
    num_workers = arg(pool, NUM_WORKERS)
    for i in range(num_workers):
        _drain(pool, (me + i) % num_workers, scratch)


@inline
def _sleep(pool, turn):
    """Wait, without using the core, until it is another turn."""
    call(arg(pool, LOCK), (arg(pool, MUTEX),))
    atomic_add(_field(pool, SLEEPERS), 1)
    while atomic_load(_field(pool, TURN)) == turn:
        call(arg(pool, WAIT), (arg(pool, CONDITION), arg(pool, MUTEX)))
    atomic_add(_field(pool, SLEEPERS), -1)
    call(arg(pool, UNLOCK), (arg(pool, MUTEX),))


def helper(pool, me):
    """The life of helper number ``me``: join every job that is open and has a place for it."""
    seen = i64(0)
    spins = i64(0)
    while not arg(pool, ENDED):
        turn = atomic_load(_field(pool, TURN))
        if turn != seen:
            seen, spins = turn, i64(0)
            if turn % 2 == 1:
                atomic_add(_field(pool, ACTIVE), 1)
                if atomic_load(_field(pool, TURN)) == turn and me < arg(pool, NUM_WORKERS):
                    _work(pool, me)
                atomic_add(_field(pool, ACTIVE), -1)
        elif spins < arg(pool, SPINS):
            spins += 1
            pause()
        else:
            _sleep(pool, turn)


@inline
def _next_turn(pool):
    atomic_add(_field(pool, TURN), 1)
    if atomic_load(_field(pool, SLEEPERS)) > 0:
        call(arg(pool, LOCK), (arg(pool, MUTEX),))
        call(arg(pool, WAKE_ALL), (arg(pool, CONDITION),))
        call(arg(pool, UNLOCK), (arg(pool, MUTEX),))


@inline
def _open(pool, body, num_items, grain, args, num_workers):
    store_int64(_field(pool, BODY), body)
    store_int64(_field(pool, ARGS), args)
    store_int64(_field(pool, NUM_ITEMS), num_items)
    store_int64(_field(pool, GRAIN), grain)
    store_int64(_field(pool, NUM_WORKERS), num_workers)
    for owner in range(num_workers):
        store_int64(_field(pool, COUNTERS + owner * LINE_FIELDS), _range_start(pool, owner))
    _next_turn(pool)


@inline
def _close(pool):
    atomic_add(_field(pool, TURN), 1)
    spins = i64(0)
    while atomic_load(_field(pool, ACTIVE)) > 0:
        spins += 1
        if spins < arg(pool, SPINS):
            pause()
        else:  # a helper has lost its core in the middle of an item: perhaps to this thread
            call(arg(pool, YIELD), ())


@inline
def run(pool, body, num_items, grain, args):
    """Run ``body`` over ``num_items`` in steps of ``grain``, on one core if that is one step."""
    num_workers = min(arg(pool, NUM_THREADS), (num_items + grain - 1) // grain)
    if num_workers <= 1:
        call(body, (args, 0, num_items, arg(pool, SCRATCH)))
        return
    _open(pool, body, num_items, grain, args, num_workers)
    _work(pool, i64(0))
    _close(pool)


@entry
def end_helpers(pool):
    """Make all helpers return."""
    store_int64(_field(pool, ENDED), 1)
    _next_turn(pool)
    _next_turn(pool)


@entry
def launch(pool, body, num_items, grain, a0, a1, a2, a3, a4, a5, a6, a7, a8):
    """What Python calls to run an op: `run`, with the body's arguments (unused ones 0)."""
    run(pool, body, num_items, grain, pack((a0, a1, a2, a3, a4, a5, a6, a7, a8)))
