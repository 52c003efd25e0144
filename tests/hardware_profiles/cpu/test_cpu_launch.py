"""The launcher: every item is done once, by as many threads as there are."""

import numpy as np
import pytest

from ninfer_profile_cpu.kernels.compile import compile_body, entry, source_stamp
from ninfer_profile_cpu.kernels.launch import PARALLEL, launch
from ninfer_profile_cpu.kernels.memory import arg, atomic_add, pack
from ninfer_profile_cpu.kernels.pool import Pool


def _count(args, begin, end, scratch):
    for i in range(begin, end):
        atomic_add(arg(args, 0) + 8 * i, 1)


@entry(5)
def count(pool, body, num_items, grain, counts):
    launch(pool, body, num_items, grain, pack((counts,)))


@pytest.mark.parametrize("num_threads", [1, 2, 5, 70])
@pytest.mark.parametrize("grain", [1, 3, 64])
def test_every_item_runs_once(num_threads, grain):
    own = Pool()
    own.set_num_threads(num_threads)
    body, counts = compile_body(_count), np.zeros(300, dtype=np.int64)
    for num_items in (1, 2, 3, 63, 64, 65, 299):
        counts[:] = 0
        count(own.address, body, num_items, grain, counts.ctypes.data)
        assert (counts[:num_items] == 1).all() and (counts[num_items:] == 0).all(), num_items


def test_portable_fork():
    from ninfer_profile_cpu.kernels.launch_portable import fork

    own = Pool()
    own.set_num_threads(2)
    own._block[PARALLEL] = fork()
    counts = np.zeros(100, dtype=np.int64)
    count(own.address, compile_body(_count), 100, 1, counts.ctypes.data)
    assert (counts == 1).all()


def test_scratch_grows_only():
    own = Pool()
    own.reserve(10_000)
    before = int(own._block[4])
    own.reserve(5)
    assert int(own._block[4]) == before >= 10_000


def test_cache_is_stamped_with_all_sources():
    assert len(source_stamp()) == 64
