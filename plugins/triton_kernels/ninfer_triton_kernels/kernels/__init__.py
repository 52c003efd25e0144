"""Functions of Triton, and how large their tiles are."""
