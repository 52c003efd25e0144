"""What a card's kernels keep beside weights, state and activations."""

import pytest

from ninfer_core.api import KernelWork, MachineFigures
from ninfer_nvidia.card import NvidiaCard

FIGURES = MachineFigures("any", 1 << 30, 1e12, {"bfloat16": 1e14}, 1e-6, "guessed")
CARD = NvidiaCard("any", ("any",), 120, "fp8", FIGURES, reserve_bytes=0)


def work(**changes):
    sizes = {"matrix": (34816, 5120), "max_tokens": 2048, "decode_tokens": 4,
             "max_context": 240_000, "attention_width": 6144}
    return KernelWork(**{**sizes, **changes})


def test_the_27b_at_240k_tokens():
    """A matrix in bf16, both halves of a gated product, sums of prompts, and of 16 tokens over 64
    parts."""
    prompts = 2 * 34816 * 5120 + 2 * 2048 * 34816 + (64 << 20)
    expected = prompts + 4 * 16 * 64 * 6144
    assert CARD.scratch_bytes(work()) == expected


@pytest.mark.parametrize("context", [2048, 16_384, 16_385, 1 << 20])
@pytest.mark.parametrize("block", [32, 64])
def test_parts_are_those_of_the_kernel(context, block):
    cache = pytest.importorskip("ninfer_triton_kernels.bindings.cache")
    more, some = (
        CARD.scratch_bytes(work(max_context=context, decode_tokens=count)) for count in (17, 16))
    assert more - some == 4 * 6144 * cache.num_parts(context // 64 + context % 64, block)


def test_more_sequences_keep_more():
    assert CARD.scratch_bytes(work(decode_tokens=32)) > CARD.scratch_bytes(work(decode_tokens=16))
    assert CARD.scratch_bytes(work(decode_tokens=16)) == CARD.scratch_bytes(work())


def test_products_want_fragments_of_what_has_few_bits():
    assert set(CARD.layouts.values()) == {"fragments_m16_v1"}
    assert "nvfp4" in CARD.layouts and "bf16" not in CARD.layouts


def test_scores_of_blocks_and_what_experts_give():
    """A chunk of Flash-Next at its whole context: 65,536 scores and ten rows of 2560 a token."""
    flash_next = {"max_tokens": 512, "max_context": 262_144, "attention_width": 0}
    less = CARD.scratch_bytes(work(**flash_next))
    assert CARD.scratch_bytes(work(**flash_next, pair_width=25_600)) - less == 4 * 512 * 25_600
    assert CARD.scratch_bytes(work(**flash_next, index_block=4)) - less == 4 * 512 * 65_536


def test_scores_are_of_as_many_tokens_as_the_kernel_takes_at_once():
    sparse = pytest.importorskip("ninfer_triton_kernels.bindings.sparse")
    long = {"max_tokens": 2048, "max_context": 1 << 20, "attention_width": 0}
    scores = CARD.scratch_bytes(work(**long, index_block=4)) - CARD.scratch_bytes(work(**long))
    assert scores == sparse.SCORE_BYTES == 1024 * 262_144
