"""Half blocks of weights from shared memory as first operands of products for compute capability
90: a group of warps has 8 tiles of 16 rows.

Weights are fragments of kind ``(bits, offset, group)``: elements, words beyond these, and scales,
as `fragments.load_elements`, `load_high` and `load_factors` find them in a block. Nothing moves
between lanes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ninfer_triton_kernels.kernels.decoders import add_pairs, both, codes_at, moved
from ninfer_triton_kernels.kernels.warp_groups import WARPS

TILES = gl.constexpr(8)

ROWS = gl.constexpr(128)
"""Of a group's tiles."""

HALF = gl.constexpr(32)
"""Columns of half a block."""

WORDS = gl.constexpr(gl.DistributedLinearLayout(
    reg_bases=[[0, 0, 1], [0, 0, 2], [4, 0, 0]],
    lane_bases=[[0, 1, 0], [0, 2, 0], [0, 4, 0], [0, 8, 0], [0, 16, 0]],
    warp_bases=[[1, 0, 0], [2, 0, 0]], block_bases=[], shape=[8, 32, 4]))
"""Words of a block, by tile, lane, and (column half, row half)."""

LANES = gl.constexpr(gl.SliceLayout(2, WORDS))
INDEX = gl.constexpr(gl.SliceLayout(0, gl.SliceLayout(1, WORDS)))
"""Of words: some dimensions alone."""

ELEMENTS = gl.constexpr(gl.BlockedLayout([1, 4], [1, 32], [WARPS, 1], [1, 0]))
"""Four words for each lane of a tile's warp."""

HIGH_PAIRS = gl.constexpr(gl.BlockedLayout([1, 2], [1, 32], [WARPS, 1], [1, 0]))
"""Two words."""

OF_TWO = gl.constexpr(gl.BlockedLayout([1, 1, 1], [1, 16, 2], [WARPS, 1, 1], [2, 1, 0]))
"""A word for two lanes, by tile, word and lane."""

OF_FOUR = gl.constexpr(gl.BlockedLayout([1, 1, 1], [1, 8, 4], [WARPS, 1, 1], [2, 1, 0]))
"""A word for four."""


@gluon.jit
def by_word(low, high):
    """What rows g and g + 8 are multiplied with, by lane, for each word."""
    w = gl.arange(0, 4, layout=INDEX)[None, None, :]
    return gl.where(w % 2 == 0, low[:, :, None], high[:, :, None])


@gluon.jit
def twice(values):
    """The bf16 that fp32 values begin with, as pairs."""
    bits = values.to(gl.int32, bitcast=True)
    return (bits >> 16 & 0xFFFF) | (bits & -65536)


@gluon.jit
def parts_of(scale):
    """fp16 as pairs of bf16: its first 8 bits, and the other 3."""
    scale = scale.to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    first = (scale.to(gl.int32, bitcast=True) & -65536).to(gl.float32, bitcast=True)
    return twice(first), twice(scale - first)


@gluon.jit
def read_high(more, KIND: gl.constexpr):
    """Words beyond the elements of 5 or 6 bits: one for a lane, or one for each column half."""
    if KIND[0] == 5:
        words = more.load(LANES)
    else:
        pairs = gl.reshape(more.load(HIGH_PAIRS), [TILES, 32, 2])
        pairs = gl.reshape(gl.join(pairs, pairs), [TILES, 32, 4])
        words = gl.convert_layout(pairs, WORDS, assert_trivial=True)
    return words


@gluon.jit
def read_scales(held, KIND: gl.constexpr):
    """By lane: words of four bytes, or parts of fp16, those of row g first."""
    if KIND[2] == 16:
        words = held.load(gl.SliceLayout(2, OF_TWO))[:, :, None].broadcast_to(TILES, 16, 2)
    else:
        words = held.load(gl.SliceLayout(2, OF_FOUR))[:, :, None].broadcast_to(TILES, 8, 4)
    scales = gl.convert_layout(gl.reshape(words, [TILES, 32]), LANES, assert_trivial=True)
    if KIND[2] != 16:
        scales = parts_of(scales) + parts_of(scales >> 16)
    return scales


@gluon.jit
def read_block(elements, more, scales, OWN: gl.constexpr, KIND: gl.constexpr):
    """The weights of a group, the first or second of a block's, out of shared memory."""
    words = elements.slice(OWN * TILES, TILES, dim=0).load(ELEMENTS)
    words = gl.convert_layout(gl.reshape(words, [TILES, 32, 4]), WORDS, assert_trivial=True)
    high = words
    if KIND[0] > 4:
        high = read_high(more.slice(OWN * TILES, TILES, dim=0), KIND)
    return words, high, read_scales(scales.slice(OWN * TILES, TILES, dim=0), KIND)


@gluon.jit
def multiplied(words, factors):
    """bf16 pairs by others; exact products only."""
    return gl.inline_asm_elementwise("mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [words, factors],
                                     dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def scaled(words, scales, OFFSET: gl.constexpr):
    """Codes plus 128 as bf16 pairs, less that and ``OFFSET``, times fp16, rounded once: the product
    with the 3 bits of a scale that bf16 has no room for is exact."""
    codes = add_pairs(words, both(0xC300 + OFFSET))
    rest = multiplied(codes, by_word(scales[1], scales[3]))
    return gl.inline_asm_elementwise(
        "fma.rn.bf16x2 $0, $1, $2, $3;", "=r,r,r,r", [codes, by_word(scales[0], scales[2]), rest],
        dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def last_of_five(words, more):
    """The fourth plane of codes of 5 bits: three are in the high word, and of the last one bit in
    each word."""
    w = gl.arange(0, 4, layout=INDEX)[None, None, :]
    last = gl.sum((words >> (15 - w)) & (0x10001 << w), 2) | moved(more, -11, 16, 0x4300)
    some = by_word(codes_at(more, 0, 5), codes_at(more, 5, 5))
    return gl.where(w == 3, last[:, :, None],
                    gl.where(w == 2, codes_at(more, 10, 5)[:, :, None], some))


@gluon.jit
def affine_half(words, more, BITS: gl.constexpr, SECOND: gl.constexpr):
    """Two planes of those of `decoders.affine_planes`."""
    if not SECOND:
        one, two = codes_at(words, 0, BITS), codes_at(words, BITS, BITS)
    elif BITS == 4:
        one, two = codes_at(words, 8, 4), codes_at(words, 12, 4)
    elif BITS == 5:
        one, two = codes_at(words, 10, 5), last_of_five(words, more)
    else:
        w = gl.arange(0, 4, layout=INDEX)[None, None, :]
        one = codes_at(more >> w % 2 * 6, 0, 6)
        two = codes_at(words, 12, 4) | moved(more >> w % 2 * 2, -8, 0x30)
    return one, two


@gluon.jit
def e2m1_half(words, scale, SECOND: gl.constexpr):
    """Two planes of those of `decoders.e2m1_planes`."""
    if SECOND:
        one = moved(words, 6, 0x01C0) | moved(words, 1, 0x8000)
        two = moved(words, -3, 0x01C0) | moved(words, 2, 0x8000)
        scale = moved(scale, -4, 0x0FF0, 0x7000)
    else:
        one, two = moved(words, 0, 0x81C0), moved(words, 3, 0x81C0)
        scale = moved(scale, 4, 0x0FF0, 0x7000)
    low, high = scale & 0xFFFF, scale >> 16 & 0xFFFF
    factors = by_word(low | low << 16, high | high << 16)
    return multiplied(one, factors), multiplied(two, factors)


@gluon.jit
def decoded_half(block, SECOND: gl.constexpr, KIND: gl.constexpr, LAYOUT: gl.constexpr):
    """The first or second half of what `read_block` gave as bf16 ``[ROWS, HALF]``, columns as
    `expert_groups.in_fragment_order` has them."""
    words, more, scales = block
    if KIND[2] == 16:
        one, two = e2m1_half(words, scales, SECOND)
    else:
        one, two = affine_half(words, more, KIND[0], SECOND)
        one, two = scaled(one, scales, KIND[1]), scaled(two, scales, KIND[1])
    planes = gl.join(one, two)
    low = planes.to(gl.int16).to(gl.bfloat16, bitcast=True)
    pairs = gl.join(low, (planes >> 16).to(gl.int16).to(gl.bfloat16, bitcast=True))
    parts = gl.reshape(pairs, [TILES, 8, 4, 2, 2, 2, 2])  # g, t, column half, row half, plane
    ordered = gl.reshape(gl.permute(parts, [0, 4, 1, 5, 3, 2, 6]), [ROWS, HALF])
    return gl.convert_layout(ordered, LAYOUT, assert_trivial=True)
