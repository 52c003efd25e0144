"""The block of int64 fields by which native code knows a stored weight."""

(CODES, HIGH, SCALES, MINIMUMS, NUM_ROWS, WIDTH, ROW_GROUPS, NUM_GROUPS, PADDED_WIDTH, AREA,
 DECODE_ROW, MULTIPLY_FUSED, MULTIPLY_PANEL, NUM_FIELDS) = range(14)
"""Addresses of the four planes (0 where the format has none); rows N; logical width K; groups that
a stored row takes; groups to compute with; the width they cover; bytes of scratch memory that a
block of rows needs; addresses of native functions."""

BLOCK_ROWS = 32
"""Weight rows of one work item: 32 rows x 1536 fp32 are 192 KiB, which stay in L2."""

LINE = 4 * BLOCK_ROWS
"""Bytes of the results of one token for a block of rows."""
