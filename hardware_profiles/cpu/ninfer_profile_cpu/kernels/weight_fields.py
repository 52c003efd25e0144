"""The block of int64 fields by which native code knows a stored weight."""

(CODES, HIGH, SCALES, MINIMUMS, TABLE, CODES_STRIDE, HIGH_STRIDE, SCALES_STRIDE, NUM_ROWS, WIDTH,
 NUM_STEPS, PADDED_WIDTH, AREA, DECODE_ROW, MULTIPLY_FUSED, MULTIPLY_PANEL, NUM_FIELDS) = range(17)
"""Addresses of what `planes.Planes` has (0 where there is none); bytes from row to row of the
planes (of scales and minimums; of a tile's rows if they are tiled); rows N; logical width K; whole
steps of the decoder in a row; the width in whole steps; bytes of scratch memory that a block of
rows needs; addresses of native functions."""

BLOCK_ROWS = 32
"""Weight rows of one work item: 32 rows x 1536 fp32 are 192 KiB, which stay in L2."""

LINE = 4 * BLOCK_ROWS
"""Bytes of the results of one token for a block of rows."""
