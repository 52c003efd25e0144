"""Native kernels on raw addresses. Start at `dot_tile`, `products`, `attention` and `launch`."""
