"""Triton kernels for NVIDIA cards. Importing this imports neither torch nor triton."""
