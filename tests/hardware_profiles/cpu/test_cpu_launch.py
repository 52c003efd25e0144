"""The launcher: every item is done once, by as many threads as there are."""

import os
import time

import numpy as np
import pytest
from numba.core import config

from ninfer_profile_cpu.kernels import compile as compile_module
from ninfer_profile_cpu.kernels import pool as pool_module
from ninfer_profile_cpu.kernels.compile import compile_native
from ninfer_profile_cpu.kernels.format_functions import decode_row, multiply_fused
from ninfer_profile_cpu.kernels.launch import SCRATCH_STRIDE, SLEEPERS, launch
from ninfer_profile_cpu.kernels.memory import arg, store_int64
from ninfer_profile_cpu.kernels.pool import SPIN_S, Pool
from ninfer_profile_cpu.kernels.threads import atomic_add

FORMATS = ("fp32", "bf16", "u4_g32_half_min", "s4_g64_pair", "s8_g32_pair")


def _count(args, begin, end, scratch):
    for i in range(begin, end):
        store_int64(scratch, i)
        atomic_add(arg(args, 0) + 8 * i, 1)


def count(pool, num_items, grain, counts):
    counts[:] = 0
    arguments = counts.ctypes.data, *(0,) * 8
    launch(pool.address, compile_native(_count), num_items, grain, *arguments)
    return bool((counts[:num_items] == 1).all() and (counts[num_items:] == 0).all())


@pytest.fixture
def make_pool():
    pools = []

    def make(num_threads):
        pools.append(Pool(num_threads))
        pools[-1].reserve(64)
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("num_threads", [1, 2, 5, 100])
@pytest.mark.parametrize("grain", [1, 3, 64])
def test_every_item_runs_once(num_threads, grain, make_pool):
    own, counts = make_pool(num_threads), np.zeros(300, dtype=np.int64)
    for num_items in (1, 2, 3, 63, 64, 65, 299):
        assert count(own, num_items, grain, counts)


def test_jobs_do_not_mix(make_pool):
    """Thousands of jobs in a row, some while helpers are still leaving the one before."""
    own, counts = make_pool(4), np.zeros(40, dtype=np.int64)
    for _ in range(15):
        assert all(count(own, num_items, 1, counts) for num_items in range(1, 40))


def test_helpers_sleep_and_wake(make_pool):
    own, counts = make_pool(3), np.zeros(40, dtype=np.int64)
    for _ in range(5):
        deadline = time.monotonic() + 10
        while own._fields[SLEEPERS] < 2 and time.monotonic() < deadline:
            time.sleep(SPIN_S)
        assert own._fields[SLEEPERS] == 2
        assert count(own, 40, 1, counts)


def test_number_of_threads_may_change(make_pool):
    own, counts = make_pool(1), np.zeros(40, dtype=np.int64)
    for num_threads in (3, 1, 2, 5, 1):
        own.set_num_threads(num_threads)
        assert own.num_threads == num_threads and count(own, 40, 1, counts)


def test_a_forked_child_works_alone(make_pool):
    own, counts = make_pool(3), np.zeros(40, dtype=np.int64)
    assert count(own, 40, 1, counts)
    child = os.fork()
    if not child:
        os._exit(0 if own.num_threads == 1 and count(own, 40, 1, counts) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert own.num_threads == 3 and count(own, 40, 1, counts)


def test_the_pool_takes_the_threads_of_torch(monkeypatch):
    given = [3]
    monkeypatch.setattr(pool_module.torch, "get_num_threads", lambda: given[-1])
    monkeypatch.setattr(pool_module.torch, "set_num_threads", given.append)
    own = pool_module.pool.__wrapped__()
    assert own.num_threads == 3 and given[-1] == 1
    own.close()


def test_scratch_grows_only(make_pool):
    own = make_pool(2)
    own.reserve(10_000)
    before = int(own._fields[SCRATCH_STRIDE])
    own.reserve(5)
    assert int(own._fields[SCRATCH_STRIDE]) == before >= 10_000


def test_a_closed_pool_can_start_again(make_pool):
    own, counts = make_pool(3), np.zeros(40, dtype=np.int64)
    own.close()
    assert own.num_threads == 1 and count(own, 40, 1, counts)
    own.set_num_threads(2)
    assert own.num_threads == 2 and count(own, 40, 1, counts)


def test_native_code_is_cached_until_a_source_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))

    def compiled_anew():
        before = compile_module._alive[:]
        compile_native(_count)
        return compile_module._alive[len(before)].cache_hits == 0

    assert compiled_anew() and not compiled_anew()
    monkeypatch.setattr(compile_module, "source_stamp", lambda: "another")
    assert compiled_anew() and not compiled_anew()


def test_native_code_needs_no_writable_directory(monkeypatch):
    def nowhere(*arguments):
        raise RuntimeError("no locator available")

    monkeypatch.setattr(compile_module, "_KernelCache", nowhere)
    assert compile_native(_count) > 0


def test_native_functions_have_names_of_their_own():
    """Two of one name can get one symbol when one is read from disk, and a call the wrong code."""
    addresses = {make(fmt) for fmt in FORMATS for make in (decode_row, multiply_fused)}
    functions = {f._pyfunc for f in compile_module._alive if f.address in addresses}
    inner = {cell.cell_contents.py_func for f in functions for cell in f.__closure__ or ()
             if hasattr(cell.cell_contents, "py_func")}
    assert len(functions) == len(addresses) and inner
    for kind in functions, {f for f in inner if "<locals>" in f.__qualname__}:
        names = {(f.__qualname__, tuple(map(_captured, f.__closure__ or ()))) for f in kind}
        assert len({name for name, _ in names}) == len(names)


def _captured(cell):
    """What a closure holds, as far as it changes the code."""
    value = cell.cell_contents
    return value if isinstance(value, int | str) else None
