"""Rows of a paged plane from any pages."""

import triton
import triton.language as tl


@triton.jit
def load_places(
    codes, scales, page, place, page_stride, scale_stride, head, num_heads, live, width,
    CODEC: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
):
    """One head of ``N`` entries, each with its page and its place there, as `cache.load_block`
    gives those of one page."""
    i = tl.arange(0, BLOCK)
    row = place * num_heads + head
    here = live[:, None] & (i < width)[None, :]
    pages = page.to(tl.int64)
    at = pages * page_stride + row * width
    tile = tl.load(codes + at[:, None] + i[None, :], mask=here, other=0.0)
    base = pages * scale_stride
    if CODEC == "fp8":
        factors = tl.load(scales + base + row, mask=live, other=0.0)
    elif CODEC == "int8":
        GROUPS: tl.constexpr = (BLOCK + 63) // 64
        g = tl.arange(0, GROUPS)
        known = live[:, None] & (g * 64 < width)[None, :]
        first = base + row * ((width + 63) // 64)
        factors = tl.load(scales + first[:, None] + g[None, :], mask=known, other=0.0)
    else:
        factors = live
    return tile, factors
