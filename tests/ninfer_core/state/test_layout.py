"""Where states lie: sizes, alignment, no overlap, and views of the pool itself."""

import pytest
import torch

from ninfer_core.api import KVCodecSpec, PagedStateSpec, SlotStateSpec, StatePlane
from ninfer_core.state.layout import ALIGNMENT, Cursor, StateLayout

INT8 = KVCodecSpec("int8", "ninfer_core.state.codecs:Int8Codec")
KV = PagedStateSpec("kv", 3, (StatePlane("key", (2, 80)), StatePlane("value", (2, 80))))
INDEX = PagedStateSpec("index", 2, (StatePlane("key", (5,)),), dtype="bfloat16")
MEMORY = SlotStateSpec("memory", 2, (3, 4), (5,))
TAIL = SlotStateSpec("tail", 1, (7,), (), dtype="bfloat16")
SPECS = [KV, MEMORY, INDEX, TAIL]


@pytest.fixture
def layout():
    return StateLayout(SPECS, INT8, max_verify_rows=4)


def matrices(layout, rows=3):
    sizes = layout.page_bytes, layout.committed_bytes, layout.record_bytes
    return [torch.zeros((rows, size), dtype=torch.uint8) for size in sizes]


def tensors(views):
    """All stored tensors by name, with the matrix they lie in."""
    for (state, layer), view in views.items():
        if hasattr(view, "planes"):
            for plane, parts in view.planes.items():
                for part, tensor in parts.items():
                    yield (state, layer, plane, part), tensor, 0
        else:
            yield (state, layer, "committed"), view.committed, 1
            yield (state, layer, "record"), view.record, 2


def test_sizes(layout):
    codes, scales = 64 * 2 * 80, 64 * 2 * 2 * 2
    assert layout.page_bytes == 3 * 2 * (codes + scales) + 2 * 64 * 5 * 2
    assert layout.bytes_per_token == layout.page_bytes / 64
    assert layout.committed_bytes == 3 * ALIGNMENT
    assert layout.record_bytes == 2 * 128 + ALIGNMENT
    assert layout.slot_bytes == layout.committed_bytes + layout.record_bytes


def test_views_have_the_declared_shapes(layout):
    views = layout.views(*matrices(layout))
    kv = views["kv", 2]
    assert kv.codec_name == "int8"
    assert kv.planes["value"]["codes"].shape == (3, 64, 2, 80)
    assert kv.planes["value"]["scales"].dtype == torch.float16
    assert views["index", 1].codec_name == "bfloat16"
    assert views["index", 1].planes["key"]["values"].shape == (3, 64, 5)
    assert views["memory", 1].committed.shape == (3, 3, 4)
    assert views["memory", 1].record.shape == (3, 4, 5)
    assert views["tail", 0].record.shape == (3, 4)
    assert views["tail", 0].record.dtype == torch.bfloat16


def test_every_byte_of_a_row_belongs_to_one_tensor_at_most(layout):
    memory = matrices(layout)
    for name, tensor, index in tensors(layout.views(*memory)):
        assert tensor.data_ptr() % ALIGNMENT == memory[index].data_ptr() % ALIGNMENT, name
        assert tensor.stride(0) * tensor.element_size() == memory[index].shape[1], name
        assert tensor[0].is_contiguous(), name
        before = memory[index].clone()
        tensor[1] = torch.ones(()).to(tensor.dtype)
        changed = before != memory[index]
        assert not changed[0].any() and not changed[2].any(), name
        assert before[1][changed[1]].eq(0).all(), name
        row = memory[index][1]
        offset = tensor.data_ptr() - memory[index].data_ptr()
        size = tensor[0].numel() * tensor.element_size()
        assert not changed[1][:offset].any() and not changed[1][offset + size :].any(), name
        assert row[offset : offset + size].any(), name


def test_alignment_of_odd_sizes():
    matrix = torch.zeros((2, 128), dtype=torch.uint8)
    cursor = Cursor(matrix)
    assert cursor.take("int8", 3).shape == (2, 3)
    cursor.take("float32", 2, 2)[1, 1, 1] = 1.0
    assert cursor.nbytes == 128
    assert matrix[1, 76:80].view(torch.float32).item() == 1.0


def test_without_paged_states_a_page_holds_a_slot():
    layout = StateLayout([MEMORY], INT8, max_verify_rows=4)
    assert layout.bytes_per_token == 0
    assert layout.page_bytes == layout.slot_bytes


def test_without_any_state_there_is_still_a_page():
    assert StateLayout([], INT8, max_verify_rows=1).page_bytes == ALIGNMENT


@pytest.mark.parametrize("tokens", [1, 4, 64])
def test_an_entry_of_several_tokens(tokens):
    spec = PagedStateSpec("kv", 1, (StatePlane("key", (80,)), StatePlane("index", (70,), tokens)))
    layout = StateLayout([spec, SlotStateSpec("tail", 1, (7,), (0,))], INT8, max_verify_rows=4)
    pages, slots, records = matrices(layout)
    views = layout.views(pages, slots, records)
    parts = views["kv", 0].planes["index"]
    assert parts["codes"].shape == (3, 64 // tokens, 70)
    assert parts["scales"].shape == (3, 64 // tokens, 2)
    sizes = 64 * 80, 64 * 2 * 2, 64 // tokens * 70, 64 // tokens * 2 * 2
    assert layout.page_bytes == sum(-(-each // ALIGNMENT) * ALIGNMENT for each in sizes)
    assert views["tail", 0].record.shape == (3, 4, 0) and layout.record_bytes == 0


@pytest.mark.parametrize("tokens", [0, 3, 128])
def test_entries_divide_a_page(tokens):
    with pytest.raises(ValueError, match="tokens_per_entry"):
        StatePlane("index", (8,), tokens)
