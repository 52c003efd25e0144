"""Kernels as the core's ops: callables on torch tensors, made once per bound op."""
