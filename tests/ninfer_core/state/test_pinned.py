"""Host memory beside a GPU: page-locked without being rounded up, or plain where that fails."""

from __future__ import annotations

import gc

import pytest
import torch

from ninfer_core.state.memory import PageMemory
from ninfer_core.state.pinned import pinned_empty
from ninfer_fixtures.registered import disk_tier


@pytest.fixture
def runtime(monkeypatch):
    """CUDA's runtime, as far as it is called."""

    class Runtime:
        error, registered = 0, {}

        def cudaHostRegister(self, address, nbytes, flags):
            if not self.error:
                self.registered[address] = nbytes
            return self.error

        def cudaHostUnregister(self, address):
            del self.registered[address]

    made = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    return made


def test_it_is_registered_as_long_as_it_lives(runtime):
    rows = pinned_empty(5, 1000)
    assert (rows.shape, rows.dtype, rows.device.type) == ((5, 1000), torch.uint8, "cpu")
    assert runtime.registered == {rows.data_ptr(): 5000}
    del rows
    gc.collect()
    assert runtime.registered == {}


def test_it_is_plain_memory_if_the_system_refuses(runtime, caplog):
    runtime.error = 2
    rows = pinned_empty(5, 1000)
    rows.fill_(7)
    assert "cannot be pinned (error 2)" in caplog.text
    del rows
    gc.collect()


def test_a_store_on_a_gpu_takes_it(lab, runtime):
    """Seen through a store whose memory says that it is there."""
    store = lab().store

    class Rows:
        is_cuda = True

    store.memory.rows = Rows()
    host = store.host_memory(6)
    assert runtime.registered == {host.rows.data_ptr(): 7 * store.page_bytes}
    assert host.pool.num_pages == 6


def test_plain_memory_has_nothing_to_wait_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", pytest.fail)
    PageMemory(torch.empty(3, 8, dtype=torch.uint8), "host").settle()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"))])
def test_states_go_down_to_files_and_up_again(lab, tmp_path, device):
    made = lab(num_pages=16, host_pages=60, device=device, disk=disk_tier(tmp_path, 99))
    assert made.cache.host.rows.is_pinned() == (device == "cuda")
    with torch.device(device):
        for seed in range(6):
            made.cache.reclaim(5)
            state = made.begin([seed] * 300)
            assert made.cache.capture(state, [seed] * 300, 300, "", "turn")
            made.store.close(state)
        assert made.cache.statistics.demoted > 2
        while made.cache.persist():
            pass
        made.verify_cache()
        for seed in range(6):
            state = made.cache.restore(made.cache.match([seed] * 301, "").point)
            made.verify(state, [seed] * 300)
            made.store.close(state)
